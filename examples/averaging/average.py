"""One member: python examples/averaging/average.py NAME SIZE"""

import sys

import torch

from ring_allreduce import Group

name, size = sys.argv[1], int(sys.argv[2])
tensors = [torch.full((2, 3), float(len(name))), torch.arange(4.0) * len(name)]
with Group.join("127.0.0.1:29500", name=name, size=size) as group:
    total = group.average(tensors, weight=1.0)
print(f"{name}: mean of {total:g} members: {tensors[0][0].tolist()} {tensors[1].tolist()}")
