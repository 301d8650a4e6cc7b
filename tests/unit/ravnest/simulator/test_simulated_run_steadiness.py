from dataclasses import replace

import pytest

from ravnest.simulator import simulate
from ravnest.simulator.simulated_run import too_short
from tests.unit.ravnest.simulator.test_fleet import home_plan

PLAN = home_plan()  # 32 samples an update, 2048 a round


@pytest.mark.parametrize(
    ("samples", "said"),
    [
        (1, "it holds 0 updates of c0, and takes 10"),
        (300, "it holds 3 updates of c1, and takes 10"),
        (600, "it holds 6 updates of c1, and takes 10"),
        (1500, "no round of averaging was complete before the end of training"),
        (9000, "it holds 5 rounds of averaging, and takes 10"),
        (24000, None),
    ],
)
def test_ten_updates_of_the_slowest_cluster_and_ten_rounds_make_a_steady_state(samples: int, said: str | None) -> None:
    assert too_short(simulate(PLAN, samples=samples), PLAN) == said


def test_one_cluster_waits_for_no_round() -> None:
    result = simulate(PLAN, samples=1500)
    alone = replace(PLAN, clusters=PLAN.clusters[:1])
    assert too_short(replace(result, clusters={"c0": result.clusters["c0"]}), alone) is None
