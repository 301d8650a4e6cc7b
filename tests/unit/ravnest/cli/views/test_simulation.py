import io
from dataclasses import replace

import pytest
from rich.console import Console

from cluster_planner import Plan, predicted_again
from ravnest.cli.views.simulation import remarks, show_simulation
from ravnest.simulator import SimulatedRun, simulate
from tests.unit.ravnest.simulator.test_fleet import home_plan


@pytest.fixture(scope="module")
def plan() -> Plan:
    return predicted_again(home_plan())


@pytest.fixture(scope="module")
def run(plan: Plan) -> SimulatedRun:
    return simulate(plan, samples=1000)


def test_each_cluster_and_each_stage_has_its_row(run: SimulatedRun, plan: Plan) -> None:
    text = io.StringIO()
    show_simulation(run, plan, Console(file=text, width=80))
    shown = text.getvalue()
    assert all(cluster.name in shown for cluster in plan.clusters)
    assert all(stage.name in shown for stage in run.stages)
    assert "Shares of the stage's time." in " ".join(shown.split())


def test_what_is_as_predicted_differs_by_0_and_not_by_minus_0(
    run: SimulatedRun, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ravnest.cli.views.simulation.too_short", lambda *_: None)
    predicted = zip(plan.clusters, plan.predicted.clusters, strict=True)
    just_below = {cluster.name: 0.9999 * one.samples_per_s for cluster, one in predicted}
    text = io.StringIO()
    show_simulation(replace(run, clusters=just_below), plan, Console(file=text, width=80))
    assert text.getvalue().count("+0.0%") >= len(just_below)
    assert "-0.0%" not in text.getvalue()


def test_the_remarks_say_why_it_ended_and_what_came_too_late(run: SimulatedRun, plan: Plan) -> None:
    plain = remarks(run, plan)
    more = remarks(run, plan, "as many as were asked for", ["the stall of desk"])
    assert len(more) == len(plain) + 2
    assert "as many as were asked for" in more[1]
    assert "the stall of desk" in more[2]
