import statistics
from itertools import islice

import pytest

from ravnest.simulator.scenario import chance_stalls, computing_slowness


@pytest.mark.parametrize("variation", [0.05, 0.5])
def test_slowness_has_mean_1_and_the_stated_variation(variation: float) -> None:
    factor = computing_slowness(0, "c0.s1", variation)
    drawn = [factor() for _ in range(20_000)]
    assert min(drawn) > 0
    assert statistics.fmean(drawn) == pytest.approx(1.0, abs=0.02)
    assert statistics.stdev(drawn) == pytest.approx(variation, rel=0.06)


def test_stalls_come_at_their_rate_and_differ_by_node_and_seed() -> None:
    drawn = list(islice(chance_stalls(0, "desk", 0, per_hour=6.0, for_s=20.0), 5000))
    assert statistics.fmean(gap_s for gap_s, _ in drawn) == pytest.approx(600.0, rel=0.06)
    assert statistics.fmean(for_s for _, for_s in drawn) == pytest.approx(20.0, rel=0.06)
    others = [chance_stalls(0, "attic", 0, 6.0, 20.0), chance_stalls(1, "desk", 0, 6.0, 20.0)]
    assert len({drawn[0], *(next(other) for other in others)}) == 3
    assert next(chance_stalls(0, "desk", 0, 6.0, 20.0)) == drawn[0]
