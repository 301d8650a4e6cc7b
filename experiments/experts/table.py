"""Part `table`: get and store among 1,024 nodes in processes of this machine, a tenth of them killed at once, and hops
of searches in tables of 100 to 10,000 nodes under the virtual clock."""

import json
import math
import os
import random
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.experts.virtual import ACCESS_S, ACROSS_S, LOSS, Measured, measure
from experiments.harness.report import ROOT, Claim, Panel, Part, Series, Table, median, spread

BESIDE_NODES, BESIDE_KEYS, BESIDE_S = 32, 256, 400.0

PUBLISHED_GET_S, PUBLISHED_STORE_S = 6.6e-3, 15e-3
"""hivemind's published figures for 1,024 nodes, on other hardware."""

ANSWER_S = 1800.0
"""A worker that says nothing for so long is ended."""


class Nodes:
    """Processes with equally many nodes each, which are one table."""

    def __init__(self, processes: int, each: int) -> None:
        command = [sys.executable, "-m", "experiments.experts.table_worker"]
        self.each = each
        self.workers = [
            subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(processes)
        ]

    def open(self) -> None:
        """Let all join: each process through nodes of two that did before."""
        addresses: list[str] = []
        for index in range(len(self.workers)):
            peers = random.Random(index).sample(addresses, min(2, len(addresses)))
            addresses += self.ask(index, kind="open", nodes=self.each, peers=peers)["addresses"]

    def ask(self, index: int, **asked: Any) -> dict[str, Any]:
        """What one process answers. Raises RuntimeError when it has ended, or says nothing in time."""
        worker = self.workers[index]
        assert worker.stdin is not None
        assert worker.stdout is not None
        watch = threading.Timer(ANSWER_S, worker.kill)
        watch.start()
        try:
            worker.stdin.write(json.dumps(asked) + "\n")
            worker.stdin.flush()
            line = worker.stdout.readline()
        finally:
            watch.cancel()
        if not line:
            raise RuntimeError(f"worker {index} ended while it was asked to {asked['kind']}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def kill(self, count: int) -> None:
        """Kill so many processes at once, chosen by chance."""
        random.Random(0).shuffle(self.workers)
        for worker in self.workers[:count]:
            worker.kill()
        self.workers = self.workers[count:]

    def close(self) -> None:
        for worker in self.workers:
            worker.kill()
        for worker in self.workers:
            worker.wait(20)


def run(*, quick: bool = False, hivemind: Path | None = None) -> Part:
    """Measure and judge; `quick`: small, whose times prove nothing. `hivemind`: the Python of an environment that has
    hivemind 1.1.12, to measure beside it."""
    processes, each = (4, 8) if quick else (64, 16)
    single, together = (40, 60) if quick else (512, 2048)
    nodes = Nodes(processes, each)
    try:
        nodes.open()
        real = _real(nodes, single, together)
    finally:
        nodes.close()
    beside = None if hivemind is None else _beside(hivemind, *((8, 16) if quick else (BESIDE_NODES, BESIDE_KEYS)))
    sizes = [(30, True), (30, False), (100, False)] if quick else SIZES
    virtual = [measure(count, joined=joined, searches=40 if quick else 200, seed=1) for count, joined in sizes]
    return _part(real, virtual, processes * each, beside)


SIZES: Sequence[tuple[int, bool]] = [
    (100, True),
    (100, False),
    (300, True),
    (300, False),
    (1000, False),
    (3000, False),
    (10_000, False),
]


def _real(nodes: Nodes, single: int, together: int) -> dict[str, Any]:
    """`single` keys are stored and got one after another in turn by all processes, and got once more together with
    further ones, up to `together`, before and after the death of a tenth of the processes."""
    count = len(nodes.workers)
    keys = [f"key {number}" for number in range(together)]
    stored = [nodes.ask(index, kind="store", keys=keys[:single][index::count]) for index in range(count)]
    got = [nodes.ask(index, kind="get", keys=keys[:single][(index + 1) % count :: count]) for index in range(count)]
    with ThreadPoolExecutor(count) as pool:
        rest = list(
            pool.map(lambda index: nodes.ask(index, kind="store", keys=keys[single:][index::count]), range(count))
        )
        before = list(
            pool.map(lambda index: nodes.ask(index, kind="get_together", keys=keys[index::count]), range(count))
        )
        killed = math.ceil(0.1 * count)
        nodes.kill(killed)
        left = len(nodes.workers)
        after = list(pool.map(lambda index: nodes.ask(index, kind="get_together", keys=keys[index::left]), range(left)))
    contacts = [one for index in range(left) for one in nodes.ask(index, kind="health")["contacts"]]
    return {
        "store_s": [one for answer in stored for one in answer["seconds"]],
        "kept": [one for answer in [*stored, *rest] for one in answer["kept"]],
        "get_s": [one for answer in got for one in answer["seconds"]],
        "hops": [one for answer in got for one in answer["hops"] if one is not None],
        "found": sum(answer["found"] for answer in got) / single,
        "found_together": sum(answer["found"] for answer in before) / together,
        "killed": killed * nodes.each,
        "found_after": sum(answer["found"] for answer in after) / together,
        "contacts": contacts,
        "keys": together,
    }


@dataclass(frozen=True)
class _Beside:
    """Both tables with as many nodes in one process, one after the other: seconds, and how many keys were found."""

    nodes: int
    keys: int
    own: dict[str, Any]
    hivemind: dict[str, Any]


def _beside(python: Path, count: int, keys: int) -> _Beside:
    """hivemind takes a daemon of some 40 MB for each node, so what fits is far less than a thousand."""
    script = Path(__file__).with_name("hivemind_nodes.py")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run(
        [str(python), str(script), str(count), str(keys)],
        stdout=subprocess.PIPE,
        env=environment,
        check=True,
        timeout=BESIDE_S,
    )
    nodes = Nodes(1, count)
    try:
        nodes.open()
        names = [f"key {number}" for number in range(keys)]
        stored = nodes.ask(0, kind="store", keys=names)
        got = nodes.ask(0, kind="get", keys=[*names[-1:], *names[:-1]])  # each by another node than stored it
    finally:
        nodes.close()
    own = {"store_s": stored["seconds"], "get_s": got["seconds"], "found": got["found"]}
    return _Beside(count, keys, own, json.loads(ran.stdout))


def _part(real: dict[str, Any], virtual: Sequence[Measured], nodes: int, beside: _Beside | None = None) -> Part:
    get_s, store_s = _mean(real["get_s"]), _mean(real["store_s"])
    full = nodes == 1024
    all_found = real["found"] == 1.0 and real["found_together"] == 1.0
    worst = max(_mean(one.hops) / math.log2(one.nodes) for one in virtual)
    claims = [
        Claim(
            "get",
            "the mean time to get one key, one key after another, is at most hivemind's published one",
            f"≤ {PUBLISHED_GET_S * 1e3:g} ms",
            f"{get_s * 1e3:.2f} ms",
            get_s <= PUBLISHED_GET_S if full else None,
        ),
        Claim(
            "store",
            "the mean time to store one key with five nodes is at most hivemind's published one",
            f"≤ {PUBLISHED_STORE_S * 1e3:g} ms",
            f"{store_s * 1e3:.2f} ms",
            store_s <= PUBLISHED_STORE_S if full else None,
        ),
        Claim("found", "every key that was stored is found", "100 %", f"{real['found_together']:.2%}", all_found),
        Claim(
            "killed",
            f"after {real['killed']} of {nodes} nodes were killed at once, the others find the keys",
            "≥ 99.5 %",
            f"{real['found_after']:.2%} of {real['keys']}",
            real["found_after"] >= 0.995,
        ),
        Claim(
            "hops",
            "the mean hops of a search are within log₂ n, for every size",
            "≤ 1 of log₂ n",
            f"at most {worst:.2f} of log₂ n",
            worst <= 1.0,
        ),
    ]
    rows = [
        [
            f"{one.nodes:,}",
            "joined" if one.joined else "filled",
            _mean(one.hops),
            max(one.hops),
            math.log2(one.nodes),
            _mean(one.requests),
            f"{one.found / one.asked:.1%}",
            spread([1e3 * each for each in one.get_s], ".0f"),
            1e3 * median(one.store_s),
        ]
        for one in virtual
    ]
    measured = [
        ["get, one after another", *_times(real["get_s"])],
        ["store, one after another", *_times(real["store_s"])],
    ]
    filled = [one for one in virtual if not one.joined]
    besides = [] if beside is None else [_beside_table(beside)]
    ran = "was not run here" if beside is None else "was run here with fewer nodes, in the last table"
    return Part(
        "table",
        "The hash table",
        claims,
        tables=[
            Table(
                f"{nodes} nodes in processes of this machine",
                ["what", "mean ms", "median ms", "95 % ms", "most ms"],
                measured,
            ),
            Table(
                "Under the virtual clock",
                ["nodes", "made", "hops", "most hops", "log₂ n", "requests", "found", "get ms", "store ms"],
                rows,
            ),
            *besides,
        ],
        panels=[
            Panel(
                "Hops of a search",
                "nodes",
                "hops",
                [
                    Series("mean", [one.nodes for one in filled], [_mean(one.hops) for one in filled]),
                    Series("log₂ n", [one.nodes for one in filled], [math.log2(one.nodes) for one in filled]),
                ],
                log_x=True,
            ),
            Panel(
                "Get, under the virtual clock",
                "nodes",
                "median ms",
                [Series("get", [one.nodes for one in filled], [1e3 * median(one.get_s) for one in filled])],
                log_x=True,
            ),
        ],
        notes=[
            "Real: UDP over loopback, real signatures; each record with five nodes. Contacts of the nodes: "
            f"{spread(real['contacts'], '.0f')}; hops of a get: {_mean(real['hops']):.2f} on average; a key was "
            f"kept by {_mean(real['kept']):.2f} nodes. Processes were killed by SIGKILL, and the survivors asked at "
            f"once. hivemind's published times are from other hardware; hivemind {ran}.",
            "Virtual: homes at random places of a square, one-way delay "
            f"{ACCESS_S * 1e3:g} ms (median, log-normal) for each home's line and up to {ACROSS_S * 1.41e3:.0f} ms "
            f"between them, {LOSS:.1%} of the messages lost, messages take no time to send, signatures are checksums. "
            "In filled tables each node is given the contacts that joining would give it.",
        ],
    )


def _beside_table(beside: _Beside) -> Table:
    rows: list[list[str | float]] = []
    for name, measured in (("ravnest", beside.own), ("hivemind 1.1.12", beside.hivemind)):
        share = f"{measured['found'] / beside.keys:.1%}"
        rows += [[name, what, *_times(measured[f"{what}_s"]), share] for what in ("get", "store")]
    title = f"{beside.nodes} nodes in one process, {beside.keys} keys one after another, found by another node"
    return Table(title, ["table", "what", "mean ms", "median ms", "95 % ms", "most ms", "found"], rows)


def _times(seconds: Sequence[float]) -> list[float]:
    ordered = sorted(seconds)
    late = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
    return [1e3 * one for one in (_mean(seconds), median(seconds), late, ordered[-1])]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
