"""Varied sites of 2 to 8 nodes in 1 to 3 clusters on home links, made from a seed.

Decides the ranges and how figures are drawn; knows nothing of models, plans or processes. No two sites are alike in
what bounds them: some are bound by a processor, some by an uplink, some by latency, some by averaging.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

SHAPES: Sequence[tuple[int, ...]] = (
    (2,),
    (2, 2),
    (3,),
    (2, 2, 2),
    (4,),
    (3, 2),
    (5,),
    (3, 3),
    (2, 3, 2),
    (8,),
    (4, 4),
    (3, 2, 3),
)
"""Stages of each cluster. The first two are what --quick takes."""
LAYERS = 8
LEAST_MBPS, MOST_MBPS = 5.0, 200.0
LEAST_SHARED_MBPS = 15.0
"""Where a pipeline and the averaging share uplinks: a pipeline that fills its uplink leaves averaging nothing until the
limit of the lag stops it, a swing of a minute and more that a run of half a minute cannot show."""
LEAST_MS, MOST_MS = 1.0, 100.0
LEAST_STEP_S, MOST_STEP_S = 0.045, 0.12
"""Of a stage's forward and backward of one micro-batch: two cores have to carry eight stages."""


@dataclass(frozen=True)
class SiteNode:
    """One machine, and the stage that it runs: `step_s` is one micro-batch's forward and backward."""

    name: str
    cluster: int
    layers: tuple[int, int]
    step_s: float
    up_mbps: float
    down_mbps: float


@dataclass(frozen=True)
class Site:
    """`one_way_ms`: of each pair of nodes, by their numbers, the smaller one first."""

    name: str
    nodes: tuple[SiteNode, ...]
    one_way_ms: dict[tuple[int, int], float]
    update_every: int
    max_staleness: int
    round_every_s: float
    """How often a round should open, where links have room for it."""

    @property
    def clusters(self) -> int:
        return 1 + self.nodes[-1].cluster

    @property
    def words(self) -> str:
        """What it is, in one line."""
        stages = "+".join(str(sum(node.cluster == c for node in self.nodes)) for c in range(self.clusters))
        ups, delays = [node.up_mbps for node in self.nodes], list(self.one_way_ms.values())
        return f"{stages} nodes, up {min(ups):.0f}–{max(ups):.0f} Mbit/s, {min(delays):.0f}–{max(delays):.0f} ms"


def sites(seed: int, count: int = len(SHAPES)) -> list[Site]:
    """`count` of them, the shapes in their order, again and again. The same for the same seed."""
    draw = random.Random(seed)
    return [_site(f"p{number + 1:02d}", SHAPES[number % len(SHAPES)], draw) for number in range(count)]


def _site(name: str, shape: Sequence[int], draw: random.Random) -> Site:
    single = len(shape) == 1
    # A single cluster is the more likely to be far apart, or on slow links: what else would bound it than a processor?
    home_mbps = _between(draw, LEAST_MBPS if single else LEAST_SHARED_MBPS, MOST_MBPS / (8 if single else 1))
    near_ms = _between(draw, LEAST_MS, MOST_MS / (1 if single else 3))
    far_ms = _between(draw, near_ms, MOST_MS)
    nodes: list[SiteNode] = []
    for cluster, stages in enumerate(shape):
        cuts = _cuts(stages, draw)
        for first, end in pairwise(cuts):
            up_mbps = _clipped(home_mbps * draw.uniform(0.6, 1.6))
            nodes.append(
                SiteNode(
                    name=f"n{len(nodes)}",
                    cluster=cluster,
                    layers=(first, end),
                    step_s=draw.uniform(LEAST_STEP_S, MOST_STEP_S),
                    up_mbps=up_mbps,
                    down_mbps=_clipped(up_mbps * draw.uniform(1.0, 4.0)),
                )
            )
    delays = {}
    for a in range(len(nodes)):
        for b in range(a + 1, len(nodes)):
            base = near_ms if nodes[a].cluster == nodes[b].cluster else far_ms
            delays[a, b] = min(max(base * draw.uniform(0.7, 1.3), LEAST_MS), MOST_MS)
    return Site(
        name=name,
        nodes=tuple(nodes),
        one_way_ms=delays,
        update_every=draw.choice((4, 8)),
        max_staleness=draw.choice((1, 2, 3)),
        round_every_s=draw.uniform(1.5, 4.0),
    )


def _cuts(stages: int, draw: random.Random) -> list[int]:
    """Where the stages begin and end: equal spans, each cut moved by at most one layer."""
    cuts = [0, *(round(LAYERS * index / stages) for index in range(1, stages)), LAYERS]
    if LAYERS // stages > 2:
        cuts[1:-1] = [cut + draw.choice((-1, 0, 1)) for cut in cuts[1:-1]]
    return cuts


def _between(draw: random.Random, low: float, high: float) -> float:
    """Log-uniform."""
    return math.exp(draw.uniform(math.log(low), math.log(high)))


def _clipped(mbps: float) -> float:
    return min(max(mbps, LEAST_MBPS), MOST_MBPS)
