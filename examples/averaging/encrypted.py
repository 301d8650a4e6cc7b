"""The same with encryption, and with members that are known by their keys.

python examples/averaging/encrypted.py keys FOLDER NAME...      once, on one machine
python examples/averaging/encrypted.py rendezvous FOLDER SIZE   where the members meet
python examples/averaging/encrypted.py NAME FOLDER SIZE         each member
"""

import sys
from pathlib import Path

import torch

from ring_allreduce import Group, KeyPair, RavnestError, Rendezvous, read_keys, write_allow_list, write_key_pair


def make_keys(folder: Path, names: list[str]) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    pairs = {name: KeyPair.make() for name in [*names, "rendezvous"]}
    for name, pair in pairs.items():
        write_key_pair(folder / f"{name}.key", pair)
    write_allow_list(folder / "allowed.keys", {name: pair.public for name, pair in pairs.items()})
    print(f"each member needs its own key of {folder}, and allowed.keys")


def serve(folder: Path, size: int) -> None:
    keys = read_keys(folder / "rendezvous.key", folder / "allowed.keys")
    with Rendezvous(size=size, port=29500, keys=keys) as rendezvous:
        print(f"{size} members are expected at {rendezvous.address}", flush=True)
        rendezvous.wait()


def average(name: str, folder: Path, size: int) -> None:
    keys = read_keys(folder / f"{name}.key", folder / "allowed.keys")
    tensors = [torch.full((2, 3), float(len(name))), torch.arange(4.0) * len(name)]
    with Group.join("127.0.0.1:29500", name=name, size=size, keys=keys) as group:
        total = group.average(tensors, weight=1.0)
    print(f"{name}: mean of {total:g} members: {tensors[0][0].tolist()} {tensors[1].tolist()}")


try:
    match sys.argv[1:]:
        case ["keys", folder, _, *_]:
            make_keys(Path(folder), sys.argv[3:])
        case ["rendezvous", folder, size] if size.isdecimal():
            serve(Path(folder), int(size))
        case [name, folder, size] if size.isdecimal():
            average(name, Path(folder), int(size))
        case _:
            print(__doc__, file=sys.stderr)
            sys.exit(2)
except RavnestError as error:
    print(f"{type(error).__name__}: {error}", file=sys.stderr)
    sys.exit(error.exit_code)
