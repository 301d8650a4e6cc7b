"""Simulates and rehearses one plan, and reads off what each cluster made.

Decides the lengths of both. A rehearsal that fails is told in words; others go on.
"""

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster_planner import Plan, save_plan
from experiments.fidelity.achieved import Achieved, of_rehearsal, of_simulation
from experiments.fidelity.measure import rehearsal_of
from ravnest.simulator import SimulatedRun, simulate

SIMULATED_S = 120.0


@dataclass(frozen=True)
class Made:
    """In the steady state. `clusters`: (samples/s, mean staleness in updates) of each, in the plan's order."""

    achieved: Achieved
    clusters: tuple[tuple[float, float], ...]

    @property
    def samples_per_s(self) -> float:
        return self.achieved.samples_per_s


def simulated(plan: Plan) -> Made:
    """Under the virtual clock."""
    found = simulate(plan, seconds=SIMULATED_S)
    rates = [found.clusters[cluster.name] for cluster in plan.clusters]
    stale = [_mean_staleness(found, cluster.name) for cluster in plan.clusters]
    return Made(of_simulation(found), tuple(zip(rates, stale, strict=True)))


def rehearsed(plan: Plan, path: Path, seconds: float) -> Made | str:
    """As `ravnest rehearse` does it, with a plan file at `path`; why it failed, if it did."""
    began_s = time.monotonic()
    made: Made | str
    try:
        save_plan(plan, path)
        made = made_in(rehearsal_of(path, seconds))
        said = f"{made.samples_per_s:.1f} samples/s, predicted {plan.predicted.samples_per_s:.1f}"
    except (RuntimeError, OSError, ValueError) as error:
        made = f"{type(error).__name__}: {' '.join(str(error).split())}"
        said = made
    print(f"{path.stem} rehearsed: {said} ({time.monotonic() - began_s:.0f} s)", file=sys.stderr, flush=True)
    return made


def made_in(document: Mapping[str, Any]) -> Made:
    """From the JSON of ravnest.rehearsal.comparison. Raises RuntimeError where the run came to no steady state."""
    clusters = [
        (cluster["samples_per_s"]["achieved"], cluster["mean_staleness"] or 0.0) for cluster in document["clusters"]
    ]
    return Made(of_rehearsal(document), tuple(clusters))


def _mean_staleness(found: SimulatedRun, cluster: str) -> float:
    """Of all gradients of all stages of a cluster, in updates."""
    counts = [stage.staleness for stage in found.stages if stage.name.rpartition(".")[0] == cluster]
    total = sum(sum(each.values()) for each in counts)
    return sum(updates * count for each in counts for updates, count in each.items()) / total if total else 0.0
