"""The same with encryption, and with members that are known by their keys.

python examples/averaging/encrypted.py keys FOLDER NAME...      once, on one machine
python examples/averaging/encrypted.py rendezvous FOLDER SIZE   where the members meet
python examples/averaging/encrypted.py NAME FOLDER SIZE         each member
"""

import sys
from pathlib import Path

import torch

from ring_allreduce import Group, KeyPair, Rendezvous, read_keys, write_allow_list, write_key_pair

match sys.argv[1:]:
    case ["keys", folder, *names]:
        Path(folder).mkdir(mode=0o700)
        pairs = {name: KeyPair.make() for name in [*names, "rendezvous"]}
        for name, pair in pairs.items():
            write_key_pair(Path(folder) / f"{name}.key", pair)
        write_allow_list(Path(folder) / "allowed.keys", {name: pair.public for name, pair in pairs.items()})
        print(f"each member needs its own key of {folder}, and allowed.keys")
    case ["rendezvous", folder, size]:
        keys = read_keys(Path(folder) / "rendezvous.key", Path(folder) / "allowed.keys")
        with Rendezvous(size=int(size), port=29500, keys=keys) as rendezvous:
            print(f"{size} members are expected at {rendezvous.address}", flush=True)
            rendezvous.wait()
    case [name, folder, size]:
        keys = read_keys(Path(folder) / f"{name}.key", Path(folder) / "allowed.keys")
        tensors = [torch.full((2, 3), float(len(name))), torch.arange(4.0) * len(name)]
        with Group.join("127.0.0.1:29500", name=name, size=int(size), keys=keys) as group:
            total = group.average(tensors, weight=1.0)
        print(f"{name}: mean of {total:g} members: {tensors[0][0].tolist()} {tensors[1].tolist()}")
    case _:
        sys.exit(__doc__)
