"""Simulated runs against times computed by hand, and what a scenario adds."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cluster_planner import load_plan, save_plan
from ravnest.errors import InvalidInput
from ravnest.simulator import BandwidthChange, Death, Scenario, SimulatedRun, Stall, StallRate, simulate
from ring_allreduce.rounds import SILENCE_FLOOR_S
from tests.unit.ravnest.simulator.test_fleet import home_plan

PLAN = home_plan()
NODES = {stage.node for cluster in PLAN.clusters for stage in cluster.stages}
EVENTFUL = Scenario(
    compute_jitter=0.2,
    link_jitter_s=0.01,
    stalls=(Stall("n1", 10.0, 5.0),),
    stall_rates=(StallRate(per_hour=30.0, for_s=2.0),),
    bandwidth=(BandwidthChange(12.0, up=0.5, down=0.5, nodes=("n0", "n2")),),
)

SOON = replace(
    EVENTFUL, stalls=(Stall("n1", 2.0, 1.0),), bandwidth=(BandwidthChange(3.0, up=0.5, down=0.5, nodes=("n0", "n2")),)
)
"""All kinds of it within seconds."""


def figures(simulated: SimulatedRun) -> SimulatedRun:
    """All but what this machine took."""
    return replace(simulated, wall_s=0.0)


def test_without_a_scenario_the_plan_is_what_happens() -> None:
    result = simulate(PLAN, seconds=120.0)
    assert result.samples_per_s == pytest.approx(PLAN.predicted.samples_per_s, rel=0.03)
    assert result.goodput_per_s == pytest.approx(result.overall_samples_per_s, rel=1e-9)
    assert max(stage.utilisation for stage in result.stages) == pytest.approx(1.0, abs=0.01)
    assert (result.stalls, result.clusters_lost) == (0, ())
    assert sum(clusters for clusters in result.clusters.values()) == pytest.approx(result.samples_per_s)
    assert set(result.staleness) <= {0, 1}
    assert result.rounds >= 2
    per_s = [speed for _, speed in result.over_time]
    assert sum(per_s) / len(per_s) * result.drain_s == pytest.approx(result.samples, rel=0.02)  # but for the drain's


def test_samples_end_a_run_too() -> None:
    result = simulate(PLAN, samples=4096)
    assert 4096 <= result.samples <= 4096 + 2 * 4 * 8 * 4
    assert result.drain_s < result.end_s


def test_all_time_of_a_stage_is_accounted_for() -> None:
    for stage in simulate(PLAN, EVENTFUL, seconds=60.0).stages:
        # But for the computation, or the stall, that was under way when the run was told to drain.
        assert sum(stage.seconds.values()) == pytest.approx(60.0, abs=6.0)


def test_a_stall_costs_what_it_lasts_where_the_stage_is_the_bottleneck() -> None:
    free = simulate(PLAN, seconds=100.0)
    busiest = max(free.stages, key=lambda stage: stage.utilisation)
    stalled = simulate(PLAN, Scenario(stalls=(Stall(busiest.node, 50.0, 15.0),)), seconds=100.0)
    cluster = busiest.name.split(".")[0]
    lost = 1 - stalled.clusters[cluster] / free.clusters[cluster]
    assert lost == pytest.approx(15.0 / 80.0, rel=0.15)  # of the steady state, which begins at 20 s
    [stage] = [each for each in stalled.stages if each.node == busiest.node]
    assert stage.seconds["stalled"] == 15.0
    assert stalled.clusters_lost == ()


def test_a_stall_beyond_the_deadline_costs_the_run_a_cluster() -> None:
    result = simulate(PLAN, Scenario(stalls=(Stall("n3", 10.0, SILENCE_FLOOR_S + 5.0),)), seconds=40.0)
    [lost] = result.clusters_lost
    assert (lost.node, lost.silent_from_s, lost.lost_s) == ("n3", 10.0, 10.0 + SILENCE_FLOOR_S)


def test_a_death_costs_what_its_cluster_had_not_averaged_and_the_others_go_on() -> None:
    free = simulate(PLAN, seconds=100.0)
    result = simulate(PLAN, Scenario(deaths=(Death("n3", 50.0, noticed_after_s=1.0),)), seconds=100.0)
    [lost] = result.clusters_lost
    [other] = free.clusters.keys() - {lost.cluster}
    assert result.clusters[other] == pytest.approx(free.clusters[other], rel=0.03)
    assert result.clusters[lost.cluster] < 0.85 * free.clusters[lost.cluster]  # it was away, and has one node less
    assert result.rounds > free.rounds / 2
    assert 0 < lost.samples < 2 * PLAN.workload.average_every
    assert round(result.goodput_per_s * result.end_s) == result.samples
    assert "n3" not in lost.nodes


def test_a_cluster_whose_node_is_back_trains_again_from_the_anchor() -> None:
    free = simulate(PLAN, seconds=200.0)
    death = Death("n3", 50.0, noticed_after_s=1.0, back_after_s=2.0)
    result = simulate(PLAN, Scenario(deaths=(death,), restart_s=5.0), seconds=200.0)
    [lost] = result.clusters_lost
    assert lost.back_s is not None
    assert 58.0 < lost.back_s < 100.0  # after the restart: the next commit, and the way of the anchor
    away_s = lost.back_s - 50.0
    assert result.clusters[lost.cluster] == pytest.approx((1 - away_s / 160.0) * free.clusters[lost.cluster], rel=0.1)
    assert result.samples == pytest.approx(result.goodput_per_s * result.end_s)
    [stage] = [each for each in result.stages if each.node == "n3"]
    assert stage.seconds["away"] == pytest.approx(lost.back_s - 51.0)
    assert stage.staleness.keys() <= {0, 1}


def test_the_anchor_takes_the_time_of_the_links() -> None:
    death = Death("n3", 20.0, noticed_after_s=0.0, back_after_s=0.0)
    slow = BandwidthChange(20.0, up=0.05, down=0.05)
    ends = [
        simulate(PLAN, Scenario(deaths=(death,), restart_s=0.0, bandwidth=change), seconds=200.0).clusters_lost[0]
        for change in ((), (slow,))
    ]
    assert None is not ends[0].back_s < (ends[1].back_s or 1000.0)


def test_the_run_ends_with_its_last_cluster() -> None:
    """And where nobody will ever be there again."""
    gone = tuple(Death(node, 20.0) for node in NODES)
    result = simulate(PLAN, Scenario(deaths=gone), seconds=1000.0)
    assert len(result.clusters_lost) == len(PLAN.clusters)
    assert result.end_s == result.clusters_lost[-1].lost_s


def test_a_run_that_has_no_checkpoint_yet_begins_again_from_nothing() -> None:
    gone = tuple(Death(cluster.stages[0].node, 2.0 + i, 1.0, 0.0) for i, cluster in enumerate(PLAN.clusters))
    result = simulate(PLAN, Scenario(deaths=gone), seconds=60.0)
    [again] = result.begun_anew
    assert again.samples == 0
    assert result.samples > 0


@settings(max_examples=25)
@given(
    st.lists(
        st.builds(
            Death,
            st.sampled_from(sorted(NODES)),
            st.floats(0.0, 30.0),
            st.sampled_from([0.0, 0.2, 5.0]),
            st.sampled_from([None, 0.0, 3.0, 8.0]),
        ),
        max_size=5,
    ),
    st.sampled_from([0.0, 1.0, 6.0]),
    st.integers(0, 9),
)
@example([Death("n3", 0.0, 5.0), Death("n2", 0.0, 0.0)], 0.0, 0)  # noticed when fewer stages train again
def test_every_history_of_deaths_and_returns_ends_and_no_sample_counts_twice(
    deaths: list[Death], restart_s: float, seed: int
) -> None:
    wanted = Scenario(compute_jitter=0.3, deaths=tuple(deaths), restart_s=restart_s)
    result = simulate(PLAN, wanted, seconds=30.0, seed=seed)
    assert all(each.samples >= 0 for each in result.clusters_lost)
    assert result.goodput_per_s * result.end_s == pytest.approx(result.samples)
    assert result.staleness.keys() <= {0, 1}


def test_a_stall_during_a_stall_is_one() -> None:
    result = simulate(PLAN, Scenario(stalls=(Stall("n0", 10.0, 8.0), Stall("n0", 12.0, 8.0))), seconds=25.0)
    assert result.stalls == 1


def test_less_bandwidth_makes_a_slower_fleet_and_averaging() -> None:
    free = simulate(PLAN, seconds=60.0)
    slow = simulate(PLAN, Scenario(bandwidth=(BandwidthChange(0.0, up=0.005, down=0.005),)), seconds=60.0)
    assert slow.samples_per_s < 0.9 * free.samples_per_s
    assert (slow.averaging_s or 0.0) > (free.averaging_s or 0.0)
    assert slow.lost["input"] > free.lost["input"]


def test_jitter_costs_some_throughput_and_its_sum_is_told() -> None:
    varied = simulate(PLAN, Scenario(compute_jitter=0.3), seconds=60.0)
    assert 0.85 < varied.samples_per_s / PLAN.predicted.samples_per_s < 1.03
    assert any(stage.late_s != 0 for stage in varied.stages)
    assert "jitter" in varied.lost


def test_the_same_seed_gives_the_same_figures_and_another_others() -> None:
    once = simulate(PLAN, SOON, seconds=8.0, seed=3)
    assert once.rounds >= 1
    assert once.stalls >= 1
    assert figures(once) == figures(simulate(PLAN, SOON, seconds=8.0, seed=3))
    assert figures(once) != figures(simulate(PLAN, SOON, seconds=8.0, seed=4))


def test_the_seed_decides_how_late_messages_come() -> None:
    links_alone = Scenario(link_jitter_s=0.02)
    once = simulate(PLAN, links_alone, seconds=8.0, seed=3)
    assert figures(once) == figures(simulate(PLAN, links_alone, seconds=8.0, seed=3))
    # The rest of the figures, but for the seed that they name.
    assert replace(simulate(PLAN, links_alone, seconds=8.0, seed=4), seed=3, wall_s=0.0) != figures(once)


PROGRAM = """
import sys
from dataclasses import replace
from cluster_planner import load_plan
from ravnest.simulator import BandwidthChange, Scenario, Stall, StallRate, simulate
print(repr(replace(simulate(load_plan(sys.argv[1]), eval(sys.argv[2]), seconds=4.0, seed=3), wall_s=0.0)))
"""


def test_the_seed_of_hashing_has_no_effect(tmp_path: Path) -> None:
    hashing = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    save_plan(PLAN, tmp_path / "plan.yaml")
    said = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "plan.yaml"), repr(SOON)],
        env={**os.environ, "PYTHONHASHSEED": hashing},
        capture_output=True,
        check=True,
        timeout=120,
        text=True,
    ).stdout
    plan = load_plan(tmp_path / "plan.yaml")
    assert said == f"{figures(simulate(plan, SOON, seconds=4.0, seed=3))!r}\n"


@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    jitter=st.sampled_from([0.0, 0.1, 0.5]),
    link_jitter_s=st.sampled_from([0.0, 0.05]),
    per_hour=st.sampled_from([0.0, 200.0]),
    factor=st.sampled_from([0.01, 0.3, 1.0, 2.0]),
)
def test_whatever_happens_the_bounds_hold(
    seed: int, jitter: float, link_jitter_s: float, per_hour: float, factor: float
) -> None:
    scenario = Scenario(
        compute_jitter=jitter,
        link_jitter_s=link_jitter_s,
        stall_rates=(StallRate(per_hour, 3.0),) if per_hour else (),
        bandwidth=(BandwidthChange(5.0, up=factor, down=factor),),
    )
    result = simulate(PLAN, scenario, seconds=12.0, seed=seed)
    assert max(result.staleness, default=0) <= PLAN.workload.max_staleness
    assert result.goodput_per_s == pytest.approx(result.overall_samples_per_s, rel=1e-9)
    assert 0 < result.samples_per_s <= 1.1 * PLAN.predicted.samples_per_s or jitter or per_hour or factor < 1
    assert all(0 <= stage.utilisation <= 1 for stage in result.stages)
    assert all(share >= 0 for cause, share in result.lost.items() if cause != "jitter")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"samples": 5, "seconds": 5.0}, "not both"),
        ({"samples": 0}, "samples: must be"),
        ({"seconds": float("inf")}, "seconds: must be"),
    ],
)
def test_impossible_bounds_are_refused(given: dict[str, float], expected: str) -> None:
    with pytest.raises(InvalidInput, match=expected):
        simulate(PLAN, **given)  # type: ignore[arg-type]


def test_progress_is_told() -> None:
    told: list[tuple[float, float, int]] = []
    result = simulate(PLAN, seconds=20.0, on_progress=lambda *each: told.append(each))
    assert [events for _, _, events in told] == sorted(events for _, _, events in told)
    assert told[-1][0] == 1.0
    assert told[-1][2] == result.events


def test_stopped_it_tells_what_was_simulated() -> None:
    asked: list[int] = []
    result = simulate(home_plan(), samples=10**9, stop=lambda: not asked.append(1))
    assert result.stopped_early
    assert len(asked) == 1
    assert 0 < result.samples < 10**6
    assert result.samples_per_s > 0
    assert result.end_s >= result.drain_s
    assert not simulate(home_plan(), samples=64, stop=lambda: False).stopped_early
