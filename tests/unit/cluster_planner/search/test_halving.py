import pytest

from cluster_planner.plan import Cluster, Stage
from cluster_planner.search.halving import best_by_halves
from cluster_planner.search.whole_plans import Clusters, WholePlans


class Climber(WholePlans):
    """Climbs by so much with each change."""

    def __init__(self, step: float, tried: list[int]) -> None:
        self.step, self.tried, self.worth = step, tried, 0.0

    def improved(self, clusters: Clusters, tries: int, seed: int) -> tuple[Clusters, float]:  # type: ignore[override]
        self.tried.append(tries)
        self.worth += self.step * tries
        return clusters, self.worth


def plan(name: str) -> Clusters:
    return (Cluster(name, 1, (Stage(name, (0, 1)),)),)


@pytest.mark.parametrize(
    ("count", "expected"), [(1, []), (2, [50, 50]), (4, [25] * 4 + [50] * 2), (5, [20] * 5 + [50] * 2)]
)
def test_the_better_half_goes_on_until_one_is_left(count: int, expected: list[int]) -> None:
    tried = list[int]()
    plans = [(Climber(step, tried), plan(f"n{step}")) for step in range(count)]
    assert best_by_halves(plans, 200, 0) == plan(f"n{count - 1}")
    assert tried == expected


def test_of_no_plans_nothing_is_left() -> None:
    assert best_by_halves([], 200, 0) == ()
