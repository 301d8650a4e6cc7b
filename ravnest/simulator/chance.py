"""What chance decides in a simulated run, from one seed: the same whatever the order in which stages ask. Pure but for
the generators, each of which has a seed of its own.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator


def slowness(seed: int, who: str, variation: float) -> Callable[[], float]:
    """By which factor each computation of a stage takes longer: lognormal, mean 1, `variation` its coefficient of
    variation."""
    normal = random.Random(f"{seed}/compute/{who}").gauss
    sigma = math.sqrt(math.log1p(variation * variation))
    mean, exp = -sigma * sigma / 2, math.exp
    return lambda: exp(normal(mean, sigma))


def stalls(seed: int, node: str, number: int, per_hour: float, for_s: float) -> Iterator[tuple[float, float]]:
    """(gap before it, length), both in seconds, of one node's stalls by its `number`-th rate; without an end."""
    chance = random.Random(f"{seed}/stalls/{node}/{number}")
    while True:
        yield chance.expovariate(per_hour / 3600.0), chance.expovariate(1.0 / for_s)
