"""One member: python examples/averaging/average.py NAME SIZE"""

import sys

import torch

from ring_allreduce import Group

if len(sys.argv) != 3 or not sys.argv[2].isdecimal():
    print(__doc__, file=sys.stderr)
    sys.exit(2)
tensors = [torch.full((2, 3), float(len(sys.argv[1]))), torch.arange(4.0) * len(sys.argv[1])]
with Group.join("127.0.0.1:29500", name=sys.argv[1], size=int(sys.argv[2])) as group:
    total = group.average(tensors, weight=1.0)
print(f"{group.name}: mean of {total:g} members: {tensors[0][0].tolist()} {tensors[1].tolist()}")
