"""Times hivemind's hash table with several nodes on loopback, in an environment of its own that has hivemind 1.1.12.

    PYTHON experiments/experts/hivemind_nodes.py NODES KEYS

It imports nothing of ravnest, which that environment need not have. All nodes are in one process, as those of
table_worker.py, and each has a daemon of its own (p2pd), as hivemind does. Out: one JSON document, the seconds of each
store and of each get, one key after another, each get at another node than the store's, and how many keys were found.
"""

import asyncio
import json
import sys
import time

from hivemind.dht.node import DHTNode

LIFETIME_S = 7200.0


async def main(nodes: int, keys: int) -> dict[str, object]:
    first = await DHTNode.create()
    addresses = await first.get_visible_maddrs()
    table = [first, *[await DHTNode.create(initial_peers=addresses) for _ in range(nodes - 1)]]
    store_s, get_s, found = [], [], 0
    ends_s = time.time() + LIFETIME_S
    for number in range(keys):
        began_s = time.perf_counter()
        await table[number % nodes].store(f"key {number}", number, ends_s)
        store_s.append(time.perf_counter() - began_s)
    for number in range(keys):
        began_s = time.perf_counter()
        got = await table[(number + 1) % nodes].get(f"key {number}")
        get_s.append(time.perf_counter() - began_s)
        found += got is not None and got.value == number
    for node in table:
        await node.shutdown()
    return {"store_s": store_s, "get_s": get_s, "found": found}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))), flush=True)
