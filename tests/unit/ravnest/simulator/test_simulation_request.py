from dataclasses import replace

import pytest

from cluster_planner import Plan
from ravnest.simulator import Scenario, simulate
from ravnest.simulator.simulation_request import SimulationLength, default_length
from tests.unit.ravnest.simulator.test_fleet import home_plan


def until(stop: dict[str, object], **options: int) -> SimulationLength:
    plan: Plan = replace(home_plan(), job={"stop": stop})
    return default_length(plan, Scenario(), 0, tried_events=5_000, **options)


@pytest.mark.parametrize(
    ("stop", "samples", "seconds", "reason"),
    [
        ({"samples": 300, "epochs": None}, 300, None, "that is the job's own end (300 samples)"),
        ({"minutes": 0.5}, None, 30.0, "that is the job's own end (0.5 minutes)"),
        ({"epochs": 3}, None, 3600.0, "that is an hour"),
    ],
)
def test_it_is_the_jobs_own_end(
    stop: dict[str, object], samples: int | None, seconds: float | None, reason: str
) -> None:
    found = until(stop)
    assert (found.samples, found.seconds) == (samples, seconds)
    assert found.reason.startswith(reason)


def test_it_holds_ten_rounds_where_that_takes_no_more_than_four_times_the_events() -> None:
    few, none = until({"samples": 10**9}, most_events=60_000), until({"samples": 10**9}, most_events=6_000)
    assert few.samples == 11 * 2048
    assert none.samples is not None
    assert none.samples < 11 * 2048


def test_it_is_no_farther_than_the_events_reach() -> None:
    found = until({"samples": 10**9}, most_events=200_000)
    assert found.samples is not None
    assert found.seconds is None
    share = f"{100 * found.samples / 10**9:.3g}%"
    end = "the job's own end (1,000,000,000 samples)"
    assert f"that is {share} of {end}, as far as some 0.2 million events reach" in found.reason
    made = simulate(home_plan(), samples=found.samples)
    assert made.events == pytest.approx(200_000, rel=0.2)
    assert until({"samples": 10**9}, most_events=200_000) == found
