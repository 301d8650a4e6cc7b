"""One peer that averages a vector with others by hivemind, in an environment of its own that has hivemind 1.1.12.

    PYTHON experiments/collaboration/hivemind_averager.py PLACE PEERS NUMBERS FORM [ADDRESS...]

It imports nothing of ravnest, which that environment need not have. PLACE: which of so many PEERS it is, from 0. FORM:
float32 or float16, in which numbers travel. ADDRESS: of the first peer's hash table. Out: a JSON line with addresses
once it is ready; then, for each line that it reads, it averages once with all others and says how many took part, and
by how much a number is off the mean at most. What is not said here is as hivemind has it.
"""

import json
import sys
import time

import torch
from hivemind import DHT
from hivemind.averaging import DecentralizedAverager
from hivemind.compression import Float16Compression, NoCompression

FIND_S = 60.0
"""A group that is not found in so long is a failure."""


def main(place: int, peers: int, numbers: int, form: str, addresses: list[str]) -> None:
    torch.set_num_threads(1)
    table = DHT(initial_peers=addresses, start=True)
    vector = torch.zeros(numbers)
    averager = DecentralizedAverager(
        [vector],
        table,
        start=True,
        prefix="beside",
        target_group_size=peers,
        compression=Float16Compression() if form == "float16" else NoCompression(),
    )
    _say(addresses=[str(address) for address in table.get_visible_maddrs()])
    for _ in sys.stdin:
        with averager.get_tensors() as (held,):
            held.fill_(float(place))
        began_s = time.perf_counter()
        try:
            group = averager.step(gather=place, timeout=FIND_S, allow_retries=False)
        except Exception as error:  # noqa: BLE001 - whatever it is, this averaging has failed
            _say(together=0, error=repr(error)[:200], seconds=time.perf_counter() - began_s)
            continue
        seconds = time.perf_counter() - began_s
        with averager.get_tensors() as (held,):
            off = float((held - (peers - 1) / 2).abs().max())
        _say(together=len(group or ()), off=off, seconds=seconds)
    averager.shutdown()
    table.shutdown()


def _say(**said: object) -> None:
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5:])
