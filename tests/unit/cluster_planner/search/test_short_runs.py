from cluster_planner.plan import Cluster, Stage
from cluster_planner.search.short_runs import TRIES, short_runs
from cluster_planner.search.whole_plans import Clusters, WholePlans


def plan(worth: float) -> Clusters:
    return (Cluster(f"{worth:g}", 1, (Stage("n0", (0, 1)),)),)


class Climber(WholePlans):
    """Finds plans of these worths, one in each run."""

    def __init__(self, worths: list[float]) -> None:
        self.worths, self.asked = worths, list[tuple[Clusters, int, int]]()

    def improved(self, clusters: Clusters, tries: int, seed: int) -> tuple[Clusters, float]:  # type: ignore[override]
        self.asked.append((clusters, tries, seed))
        worth = self.worths[len(self.asked) - 1]
        return plan(worth), worth


def test_runs_go_on_from_the_best_plan_with_other_draws_and_say_how_long_nothing_was_gained() -> None:
    climber = Climber([1.0, 3.0, 3.0, 2.0, 4.0])
    runs = short_runs(climber, plan(1.0), 1.0, 7)
    found = [next(runs) for _ in range(5)]
    assert [(worth, idle // TRIES) for _, worth, idle in found] == [(1.0, 1), (3.0, 0), (3.0, 1), (3.0, 2), (4.0, 0)]
    assert [clusters for clusters, _, _ in found] == [plan(1.0), plan(3.0), plan(3.0), plan(3.0), plan(4.0)]
    assert [clusters for clusters, _, _ in climber.asked] == [plan(1.0), plan(1.0), plan(3.0), plan(3.0), plan(3.0)]
    assert [(tries, seed) for _, tries, seed in climber.asked] == [(TRIES, seed) for seed in range(7, 12)]
