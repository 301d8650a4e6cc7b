"""A process with several nodes of a table, on loopback: `python -m experiments.experts.table_worker`.

In: one JSON document a line on standard input, by `kind`. Out: one JSON line for each. It ends with its input.
"""

import asyncio
import json
import sys
import time
from typing import Any

from ravnest.dht import Entry, HashTable

LIFETIME_S = 7200.0


class Worker:
    def __init__(self) -> None:
        self.tables: list[HashTable] = []

    async def open(self, nodes: int, peers: list[str]) -> dict[str, Any]:
        """Start nodes, one after another. The first node of all has no peers; those after it join through it."""
        for _ in range(nodes):
            through = peers or [str(table.addresses[0]) for table in self.tables[:1]]
            self.tables.append(await HashTable.opened(["127.0.0.1:0"], through, deadline_s=120.0))
        return {"addresses": [str(table.addresses[0]) for table in self.tables]}

    async def store(self, keys: list[str]) -> dict[str, Any]:
        """One key after another, by one node after another."""
        spent, kept = [], []
        for number, key in enumerate(keys):
            table = self.tables[number % len(self.tables)]
            began_s = time.perf_counter()
            (stored,) = await table.store(Entry(key.encode(), b"", key.encode(), LIFETIME_S))
            spent.append(time.perf_counter() - began_s)
            kept.append(stored.kept)
        return {"seconds": spent, "kept": kept}

    async def get(self, keys: list[str]) -> dict[str, Any]:
        """One key after another, by one node after another."""
        spent, found, hops = [], 0, []
        for number, key in enumerate(keys):
            table = self.tables[number % len(self.tables)]
            began_s = time.perf_counter()
            one = await table.get(key.encode())
            spent.append(time.perf_counter() - began_s)
            found += [record.value for record in one.records] == [key.encode()]
            hops.append(one.hops)
        return {"seconds": spent, "found": found, "hops": hops}

    async def get_together(self, keys: list[str]) -> dict[str, Any]:
        """All keys at once, each by one of the nodes."""
        count = len(self.tables)
        groups = [[key.encode() for key in keys[number::count]] for number in range(count)]
        began_s = time.perf_counter()
        answers = await asyncio.gather(
            *(table.get_many(group) for table, group in zip(self.tables, groups, strict=True) if group)
        )
        spent_s = time.perf_counter() - began_s
        found = {key: one for answer in answers for key, one in answer.items()}
        return {"seconds": spent_s, "found": sum([r.value for r in one.records] == [key] for key, one in found.items())}

    async def health(self) -> dict[str, Any]:
        return {"contacts": [table.health().contacts for table in self.tables]}


async def main() -> None:
    worker, loop = Worker(), asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        asked = json.loads(line)
        answer = await getattr(worker, asked.pop("kind"))(**asked)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
