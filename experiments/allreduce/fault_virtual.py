"""Faults in fleets of several rings: what is done to a fleet in memory (fault_fleet.py), and what must come out of it.

Judged as on processes: weights are powers of two, means are computed in float64.
"""

import random
from collections import defaultdict
from typing import Any

import numpy as np

from experiments.allreduce.fault_fleet import VirtualFleet

FAULTS = (
    "a cluster killed",
    "two clusters killed",
    "frozen, back after it was left out",
    "a link loses what is on it",
    "a chunk of NaN",
    "a cluster joins",
    "killed, and a cluster joins",
)

OF_MESSAGES = ("a link loses what is on it", "a chunk of NaN")
"""They cost nobody his place."""


def wrong_in(fleet: VirtualFleet) -> list[str]:
    """What is wrong with what was merged; nothing when all is right."""
    wrong: list[str] = []
    averages: dict[int, dict[str, set[tuple[float, bytes]]]] = defaultdict(lambda: defaultdict(set))
    for member in fleet.members.values():
        for number, rings in member.merged.items():
            for ring, merged in rings.items():
                averages[number][ring].add(merged)
    for number, rings in averages.items():
        if any(len(found) > 1 for found in rings.values()):
            wrong.append(f"round {number}: different averages were merged")
            continue
        totals = {total for found in rings.values() for total, _ in found}
        if len(totals) > 1:
            wrong.append(f"round {number}: not the same clusters in all rings: {totals}")
        for ring, found in rings.items():
            ((total, bytes_),) = found
            took_part = [cluster for cluster, n in fleet.weights.items() if int(total) & int(n)]
            parts = [fleet.weights[c] * fleet.contribution(c, ring, number).astype(np.float64) for c in took_part]
            mean = sum(parts) / total
            error = np.linalg.norm(np.frombuffer(bytes_, dtype=np.float32) - mean)
            if not error <= 1e-6 * np.linalg.norm(mean) + 1e-12:
                wrong.append(f"round {number} of {ring}: not the mean of {took_part}")
    for member in fleet.alive:
        expected = set(range(min(member.merged, default=fleet.rounds + 1), fleet.rounds + 1))
        if set(member.merged) != expected:
            wrong.append(f"{member.name} merged rounds {sorted(member.merged)}")
    return wrong


def scenario(fault: str, seed: int) -> dict[str, Any]:
    """One fleet with one fault, and without, as a line of the table."""
    plain = _fleet(fault, seed)
    assert plain.run()
    fleet, hung = _run(fault, seed, random.Random(f"{fault} {seed}").randrange(plain.steps))
    if fault in OF_MESSAGES and not fleet.struck:  # the last message had gone: from the start, then
        fleet, hung = _run(fault, seed, 0)
    wrong = wrong_in(plain) + wrong_in(fleet)
    if fault in OF_MESSAGES:
        if len(fleet.owner.members) < len(plain.owner.members):
            wrong.append("a member was left out")
        if not fleet.struck or fleet.owner.epoch < 2:
            wrong.append("nothing shows that the fault struck")
    left, there = len(fleet.owner.members), len(fleet.members)
    words = f"{'all' if left == there else 'not all'} members there at the end; epoch {fleet.owner.epoch}"
    return {
        "fault": fault,
        "seed": seed,
        "where": "in memory",
        "members": len(plain.members),
        "rounds": plain.rounds,
        "wire": "exact",
        "way": "ring",
        "outcome": "hung" if hung else f"wrong: {'; '.join(wrong)}" if wrong else words,
        "hung": hung,
        "wrong": bool(wrong),
        "seconds_lost": fleet.now_s - plain.now_s,
    }


def _fleet(fault: str, seed: int) -> VirtualFleet:
    return VirtualFleet(seed, least_clusters=3 if fault == "two clusters killed" else 2)


def _run(fault: str, seed: int, at: int) -> tuple[VirtualFleet, bool]:
    """A fleet to which `fault` happens after `at` steps, at its end; whether it hung."""
    fleet = _fleet(fault, seed)
    for _ in range(at):
        fleet.step()
    victim = fleet.chance.choice(sorted(fleet.weights))
    match fault:
        case "a cluster killed":
            fleet.kill(victim)
        case "two clusters killed":
            fleet.kill(victim)
            for _ in range(fleet.chance.randint(0, 12)):
                fleet.step()
            fleet.kill(next(cluster for cluster in sorted(fleet.weights) if cluster != victim))
        case "frozen, back after it was left out":
            fleet.freeze(victim)
        case "a link loses what is on it":
            fleet.cut()
        case "a chunk of NaN":
            fleet.poison()
        case "a cluster joins":
            fleet.join()
        case _:
            fleet.kill(victim)
            for _ in range(fleet.chance.randint(0, 12)):
                fleet.step()
            fleet.join()
    return fleet, not fleet.run()


def scenarios(count: int, seed: int) -> list[dict[str, Any]]:
    """`count` scenarios, the faults in turn; seconds are of the virtual clock."""
    return [scenario(FAULTS[index % len(FAULTS)], seed * 100_000 + index) for index in range(count)]
