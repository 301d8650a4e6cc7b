"""Whether a round over all nodes of a fleet is shorter than the time between two, while all clusters train.

Fleets of sizes.py in shorter forms: each row has one for what crosses cuts and one for averaging, and rings of rings
where the plan says so. It is simulated until two rounds are committed. No cluster has drained then, so that pipelines
take the links for themselves meanwhile as they do in a run. What a form costs in learning is asked by experiments/wire.

The claim takes the longest of the rounds, and the time from the opening of the first one to that of the second. Where
pipelines fill an uplink to the last byte, a round is done no sooner than clusters wait for it, which is when the next
one opens, so that the ratio is 1 or more however short the round were by itself.
"""

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from cluster_planner import Plan
from experiments.harness.report import Claim, Part, Table
from experiments.scale.fleets import SAMPLES_PER_CLUSTER, home_plan
from experiments.scale.sizes import JITTER, SEED
from ravnest.simulator.fleet import fleet_of_plan
from ravnest.simulator.run import VirtualRun
from ravnest.simulator.scenario import computing_slowness
from ravnest.training.precision import bytes_per_float32_byte

ROUNDS = 2
LEAST_OF_ALL = ("int4", "int4")
"""The shortest forms that experiments/wire found to end within 1 % (cuts) and 0.2 % (averaging)."""


@dataclass(frozen=True)
class Asked:
    """A fleet, and the forms of what crosses cuts and of what is averaged."""

    nodes: int
    stages: int
    cuts: str
    averaging: str


@dataclass(frozen=True)
class Seen:
    """The moments at which rounds were opened and committed, in seconds, and what came beside them."""

    opened_s: tuple[float, ...]
    committed_s: tuple[float, ...]
    samples_per_s: float
    """From the first opening to the last."""
    events: int
    wall_s: float

    @property
    def longest_s(self) -> float:
        """Of the rounds, from opening to commit."""
        return max(done - begun for begun, done in zip(self.opened_s, self.committed_s, strict=False))

    @property
    def between_s(self) -> float:
        """From one opening to the next, the shortest."""
        return min(later - earlier for earlier, later in zip(self.opened_s, self.opened_s[1:], strict=False))

    @property
    def part(self) -> float:
        """The longest round over the time between two."""
        return self.longest_s / self.between_s


ASKED = (
    Asked(1000, 40, "float32", "float32"),
    Asked(1000, 40, "int8", "int8"),
    Asked(1000, 40, *LEAST_OF_ALL),
    Asked(10_000, 40, *LEAST_OF_ALL),
)
"""10⁸ events in all: some twenty-five minutes of one core."""
QUICK = (Asked(40, 10, "float32", "float32"), Asked(40, 10, *LEAST_OF_ALL))


class _SeenEnough(Exception):
    """Ends a simulation in which nothing more is to be seen: the drain's round would take as many events again."""


def run(*, quick: bool) -> Part:
    """Each fleet once; the last one is the claim's."""
    asked = QUICK if quick else ASKED
    found = [(each, plan_of(each)) for each in asked]
    return part_of([(each, plan, seen(plan)) for each, plan in found], judged=not quick)


def plan_of(asked: Asked) -> Plan:
    """The plan of one fleet."""
    cuts, averaging = (bytes_per_float32_byte(form) for form in (asked.cuts, asked.averaging))
    short: Mapping[str, Any] = {
        "activation_wire_ratio": cuts,
        "gradient_wire_ratio": cuts,
        "averaged_bytes_per_parameter_byte": averaging,
        "hierarchical_averaging": True,
    }
    return home_plan(asked.nodes, asked.stages, SEED, short=short)


def seen(plan: Plan) -> Seen:
    """Simulate a plan until ROUNDS rounds are committed."""
    virtual = VirtualRun(
        fleet_of_plan(plan, tuned=True),
        traced=False,
        slowness=partial(computing_slowness, SEED, variation=JITTER),
        seed=SEED,
    )

    def on_commit(number: int) -> None:
        if number == ROUNDS:
            raise _SeenEnough

    virtual.rounds.on_commit = on_commit
    began_s = time.perf_counter()
    with suppress(_SeenEnough):
        virtual.run()
    opened_s = tuple(virtual.rounds.opened_s)
    samples = (len(opened_s) - 1) * plan.workload.average_every
    return Seen(
        opened_s,
        tuple(virtual.rounds.committed_s),
        samples / (opened_s[-1] - opened_s[0]),
        virtual.clock.events,
        time.perf_counter() - began_s,
    )


def part_of(rows: list[tuple[Asked, Plan, Seen]], *, judged: bool) -> Part:
    """The part of the report, of which the last row is judged."""
    largest, _, came = rows[-1]
    return Part(
        name="whole_fleet",
        title="A round over all nodes, while all train",
        claims=[
            Claim(
                "shorter than the time between rounds",
                f"{largest.nodes:,} nodes, {largest.cuts} across cuts and {largest.averaging} to average: the longest "
                f"of {ROUNDS} rounds while all clusters train, over the time between their openings, simulated",
                "< 1",
                f"{came.part:.2f}: {came.longest_s:.0f} s of {came.between_s:.0f} s",
                came.part < 1 if judged else None,
            )
        ],
        tables=[
            Table(
                "Rounds while all clusters train, simulated",
                (
                    "nodes",
                    "clusters",
                    "across cuts",
                    "to average",
                    "rings that are rings of rings",
                    "samples/s",
                    "predicted",
                    "longest round, s",
                    "between rounds, s",
                    "part of it",
                    "events",
                    "this machine, s",
                ),
                [_row(*row) for row in rows],
            )
        ],
        notes=[
            f"The fleets of `sizes`, a ring for each of the model's units and a member of it in each cluster, "
            f"{SAMPLES_PER_CLUSTER} samples of each cluster to a round. Each row ends with the commit of round "
            f"{ROUNDS}, long before any cluster drains. Where pipelines fill an uplink to the last byte, a round is "
            "done no sooner than clusters wait for it, when the next one opens: the part is 1 or more then, however "
            "short the round were by itself."
        ],
    )


def _row(asked: Asked, plan: Plan, came: Seen) -> list[str | int | float]:
    rings = fleet_of_plan(plan).rings
    return [
        asked.nodes,
        len(plan.clusters),
        asked.cuts,
        asked.averaging,
        f"{sum(ring.groups is not None for ring in rings)} of {len(rings)}",
        came.samples_per_s,
        plan.predicted.samples_per_s,
        came.longest_s,
        came.between_s,
        came.part,
        came.events,
        round(came.wall_s, 1),
    ]
