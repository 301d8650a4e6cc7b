"""Varied fleets of 2 to 8 unequal home machines in one or two places, made from a seed: what is planned and rehearsed.

Decides the ranges and how figures are drawn, so that two cores can imitate eight stages: no layer takes less than
LEAST_LAYER_S anywhere. Knows no plan; what becomes of a fleet is the planner's to say.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

Mbps = tuple[float, float]

SLOW: Mbps = (2.5, 5.0)
MIDDLING: Mbps = (8.0, 30.0)
FAST: Mbps = (50.0, 200.0)


@dataclass(frozen=True)
class Shape:
    """`least_stages`: of each cluster, as a user may demand (`ravnest plan --min-stages`)."""

    nodes: int
    places: int
    up_mbps: Mbps
    least_stages: int
    update_every: int
    max_staleness: int


SHAPES = (
    Shape(2, 1, SLOW, 2, 4, 1),
    Shape(4, 1, FAST, 2, 2, 2),
    Shape(6, 1, MIDDLING, 3, 4, 2),
    Shape(3, 1, MIDDLING, 3, 2, 3),
    Shape(5, 1, SLOW, 2, 2, 2),
    Shape(6, 2, FAST, 2, 4, 1),
    Shape(3, 2, FAST, 3, 2, 1),
    Shape(8, 1, FAST, 4, 4, 2),
    Shape(4, 2, SLOW, 4, 4, 2),
    Shape(7, 2, MIDDLING, 3, 2, 3),
    Shape(5, 1, MIDDLING, 5, 2, 1),
    Shape(8, 2, MIDDLING, 6, 4, 2),
)
"""The first is what --quick takes."""

DIVISIBLE = (
    Shape(6, 2, FAST, 2, 4, 1),
    Shape(8, 1, MIDDLING, 2, 4, 2),
    Shape(8, 2, FAST, 2, 2, 2),
    Shape(8, 2, FAST, 2, 4, 1),
)
"""Of as many nodes that several numbers of clusters come into question."""

LEAST_LAYER_S, MOST_LAYER_S = 0.04, 0.1
"""Of one layer's forward and backward of one micro-batch."""
NEAR_MS, FAR_MS = (1.0, 15.0), (20.0, 100.0)
"""One way: within a place, and between two."""


@dataclass(frozen=True)
class Machine:
    """`layer_s`: one layer's forward and backward of one micro-batch."""

    name: str
    place: int
    layer_s: float
    up_mbps: float
    down_mbps: float


@dataclass(frozen=True)
class Home:
    """A fleet and the job's pace. `one_way_ms`: of each pair of machines, by their numbers, the smaller one first."""

    name: str
    machines: tuple[Machine, ...]
    one_way_ms: dict[tuple[int, int], float]
    least_stages: int
    update_every: int
    max_staleness: int
    round_every_s: float
    """How often a round would open if no machine ever waited."""

    @property
    def words(self) -> str:
        """What it is, in one line."""
        places = "+".join(str(sum(m.place == p for m in self.machines)) for p in range(1 + self.machines[-1].place))
        ups, delays = [machine.up_mbps for machine in self.machines], list(self.one_way_ms.values())
        return f"{places} nodes, up {min(ups):.0f}–{max(ups):.0f} Mbit/s, {min(delays):.0f}–{max(delays):.0f} ms"


def homes(seed: int, shapes: Sequence[Shape] = SHAPES, letter: str = "h") -> list[Home]:
    """One of each shape, in their order. The same for the same seed."""
    draw = random.Random(seed)
    return [_home(f"{letter}{number + 1:02d}", shape, draw) for number, shape in enumerate(shapes)]


def _home(name: str, shape: Shape, draw: random.Random) -> Home:
    count, places = shape.nodes, shape.places
    machines = []
    for number in range(count):
        up_mbps = _between(draw, *shape.up_mbps)
        machines.append(
            Machine(
                name=f"n{number}",
                place=number * places // count,
                layer_s=_between(draw, LEAST_LAYER_S, MOST_LAYER_S),
                up_mbps=up_mbps,
                down_mbps=up_mbps * draw.uniform(1.0, 4.0),
            )
        )
    near_ms, far_ms = _between(draw, *NEAR_MS), _between(draw, *FAR_MS)
    delays = {}
    for a in range(count):
        for b in range(a + 1, count):
            base = near_ms if machines[a].place == machines[b].place else far_ms
            delays[a, b] = base * draw.uniform(0.8, 1.2)
    return Home(
        name=name,
        machines=tuple(machines),
        one_way_ms=delays,
        least_stages=shape.least_stages,
        update_every=shape.update_every,
        max_staleness=shape.max_staleness,
        round_every_s=draw.uniform(4.0, 8.0),
    )


def _between(draw: random.Random, low: float, high: float) -> float:
    """Log-uniform."""
    return math.exp(draw.uniform(math.log(low), math.log(high)))
