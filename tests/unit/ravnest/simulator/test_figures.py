"""Figures of runs of several sessions."""

import pytest

from ravnest.simulator import Death, Scenario, simulate
from ravnest.simulator.figures import SPANS
from tests.unit.ravnest.simulator.test_fleet import home_plan

PLAN = home_plan()


def test_what_was_made_in_earlier_sessions_counts() -> None:
    gone = tuple(Death(cluster.stages[0].node, 60.0, 1.0) for cluster in PLAN.clusters)
    result = simulate(PLAN, Scenario(deaths=gone, restart_s=5.0), seconds=150.0)
    [again] = result.begun_anew
    after = (result.drain_s - again.began_s) * result.samples_per_s
    assert result.samples > after
    assert result.goodput_per_s * result.end_s == pytest.approx(result.samples)
    assert len(result.over_time) == SPANS
    made = sum(per_s for _, per_s in result.over_time) * result.drain_s / SPANS
    lost = again.samples + sum(each.samples for each in result.clusters_lost)
    assert made == pytest.approx(result.samples + lost, rel=0.05)
    assert result.rounds == len(result.rounds_s)
    assert result.steady_from_s >= again.began_s
