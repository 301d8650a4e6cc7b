"""What becomes of a group when something happens to one of its members: seeded scenarios on real processes.

`scenarios()` runs each with its fault and without, judges what came out (fault_plan.py) and says what it cost. The
rings of several segments, several rounds in flight and clusters of several members are in fault_virtual.py: more seeds,
on a network in memory.
"""

import json
import os
import selectors
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from experiments.allreduce import fault_virtual
from experiments.allreduce.fault_plan import (
    KINDS,
    Done,
    Ends,
    Scenario,
    blamed_wrongly,
    did_not_strike,
    faults_found,
    last_epoch,
    scenario,
    words_of,
)
from experiments.harness.report import ROOT

WIRES = ("exact", "bfloat16", "float16", "int8")
PROCESSES = "processes"
ANSWER_S = 90.0
SCENARIOS = 252
NURSERIES = 4
"""Scenarios that run at the same time: most of one is waiting for a deadline."""

QUICK = (
    "killed",
    "killed as its ring finishes",
    "frozen",
    "cut off mid-chunk",
    "wrong size",
    "NaN",
    "reordered frames",
)
VIRTUAL, VIRTUAL_QUICK = 105, 14


class Nursery:
    """The process from which the processes of scenarios are forked."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "experiments.allreduce.fault_nursery", self._folder.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=ROOT,
        )
        self._answer()

    def run(self, plan: Scenario) -> dict[str, Any]:
        """What the processes of `plan` told; their averages as `Done` under "done"."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(plan.as_json()) + "\n")
        self._process.stdin.flush()
        result = self._answer()
        result["done"] = list(self._averages(result["told"]))
        return result

    def __enter__(self) -> "Nursery":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()

    def _averages(self, told: dict[str, list[dict[str, Any]]]) -> Iterator[Done]:
        for name, lines in told.items():
            for line in lines:
                if "done" in line:
                    life, call, number, total = line["done"]
                    path = Path(self._folder.name) / f"{name}.{life}.{call}.bin"
                    yield Done(name, life, call, number, total, np.fromfile(path, dtype=np.float32))
                    path.unlink()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(ANSWER_S):
                raise RuntimeError(f"the nursery did not answer within {ANSWER_S:g} s")
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the nursery died")
        answer: dict[str, Any] = json.loads(line)
        return answer


def judge(plan: Scenario, result: dict[str, Any]) -> list[str]:
    """What is wrong with a result; nothing when all is right."""
    begun: dict[str, tuple[int, int]] = {}
    texts: dict[str, str] = {}
    wrong = [f"crashed: {text}" for text in result["crashed"]]
    for name, lines in result["told"].items():
        for line in lines:
            if "begun" in line:
                life, call = line["begun"]
                begun[name] = life, call
            if line.get("end") in ("PeerLost", "LeftOut"):
                texts[name] = line["text"]
            if "spoilt" in line:
                wrong.append(f"{name}: {line['spoilt']}")
    ends: Ends = result["ends"]
    wrong += faults_found(plan, result["done"], begun, ends) + did_not_strike(plan, result["told"])
    wrong += blamed_wrongly(plan, texts)
    return [*wrong, *texts.values()] if wrong else []


def outcome(plan: Scenario, result: dict[str, Any]) -> dict[str, Any]:
    """One line of the table."""
    wrong = judge(plan, result)
    words = words_of(plan, result["ends"], last_epoch(result["told"]))
    if result["hung"]:
        words = f"hung: {result['ends']}"
    elif wrong:
        words = f"wrong: {'; '.join(wrong)}"
    return {
        "fault": plan.fault,
        "seed": plan.seed,
        "where": PROCESSES,
        "members": plan.members,
        "rounds": plan.rounds,
        "wire": plan.wire,
        "way": plan.way,
        "outcome": words,
        "hung": bool(result["hung"]),
        "wrong": bool(wrong),
    }


def run(nursery: Nursery, plan: Scenario) -> dict[str, Any]:
    """A scenario with its fault and without."""
    with_fault = nursery.run(plan)
    without = nursery.run(replace(plan, fault="none"))
    line = outcome(plan, with_fault)
    plain = judge(replace(plan, fault="none"), without)
    if plain or without["hung"]:
        line |= {"wrong": True, "outcome": f"wrong without any fault: {plain or 'hung'}"}
    return {**line, "seconds_lost": with_fault["seconds"] - without["seconds"]}


def plans(count: int, seed: int, wires: Sequence[str] = WIRES) -> list[Scenario]:
    """`count` scenarios, the kinds of fault in turn."""
    kinds = list(KINDS)
    return [scenario(kinds[index % len(kinds)], seed * 100_000 + index, wires=wires) for index in range(count)]


def scenarios(quick: bool, seed: int) -> list[dict[str, Any]]:
    """Every scenario as a line of the table: fault, seed, outcome, seconds_lost, hung, wrong, and where it ran."""
    chosen = [scenario(fault, seed, wires=WIRES) for fault in QUICK] if quick else plans(SCENARIOS, seed)
    return run_all(chosen) + fault_virtual.scenarios(VIRTUAL_QUICK if quick else VIRTUAL, seed)


def run_all(chosen: Sequence[Scenario]) -> list[dict[str, Any]]:
    """Run these, several at a time. When it is interrupted, those under way are the last."""
    interrupted = threading.Event()

    def some(first: int) -> list[dict[str, Any]]:
        with Nursery() as nursery:
            return [run(nursery, plan) for plan in chosen[first::NURSERIES] if not interrupted.is_set()]

    with ThreadPoolExecutor(NURSERIES) as pool:
        try:
            lines = [line for several in pool.map(some, range(NURSERIES)) for line in several]
        except BaseException:
            interrupted.set()
            raise
    return sorted(lines, key=lambda line: (line["fault"], line["seed"]))


def main() -> None:
    """`python -m experiments.allreduce.faults COUNT SEED [KIND]`: some scenarios, as they come."""
    count, seed = int(sys.argv[1]), int(sys.argv[2])
    chosen = [plan for plan in plans(count, seed) if len(sys.argv) < 4 or plan.fault == sys.argv[3]]
    with Nursery() as nursery:
        for plan in chosen:
            line = run(nursery, plan)
            print(
                f"{line['seconds_lost']:6.2f} s  {plan.fault} {plan.seed} n={plan.members}: {line['outcome']}",
                flush=True,
            )


if __name__ == "__main__":
    main()
