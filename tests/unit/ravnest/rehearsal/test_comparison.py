import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster_planner import Plan
from ravnest.driver.observe.report import RunLimit, RunResult, StageFigures, StageMemory, TimeShares
from ravnest.rehearsal.comparison import LONGEST_S, ROUNDS, UPDATES, Compared, as_plain, compare, extent, slower

SHARES = TimeShares(
    seconds=10.0,
    compute=0.75,
    forward=0.25,
    backward=0.45,
    update=0.05,
    averaging=0.02,
    evaluation=0.0,
    handoff=0.03,
    bubble=0.2,
    waiting={"input": 0.2},
)
NODES = {"c0.s0": "desk", "c0.s1": "laptop", "c1.s0": "tower", "c1.s1": "tablet"}


def figures(stage: str, step_s: float | None, compute: float, late_share: float | None = 0.0) -> StageFigures:
    steady = None if step_s is None else replace(SHARES, compute=compute)
    memory = StageMemory(50_000_000, 49_000_000, {"weights": 49_000_000}, window=12 if stage < "c1" else None)
    return StageFigures(
        stage, NODES[stage], steady, SHARES, memory, step_s, 0.5, 1 if stage.endswith("s0") else 0, late_share
    )


@pytest.fixture
def run(result: RunResult) -> RunResult:
    """The plan of conftest.py at twice the speed: c0 as predicted, c1 slower."""
    stages = (
        figures("c0.s0", 0.020, 0.5),
        figures("c0.s1", 0.020, 0.99),
        figures("c1.s0", 0.040, 0.8),
        figures("c1.s1", 0.040, 0.4),
    )
    return replace(result, stages=stages, averaging_s=0.4)


def test_all_of_a_stages_time_is_accounted_for(plan: Plan, run: RunResult) -> None:
    stage = compare(plan, run, 2.0).clusters[0].stages[0]
    assert stage.other == {"averaging": 0.02, "evaluation": 0.0, "handing over": 0.03}
    assert stage.waiting == SHARES.waiting
    shares = SHARES.compute + sum(stage.waiting.values()) + sum(stage.other.values())
    assert shares == pytest.approx(1.0)


def test_times_and_rates_are_the_plans_whatever_the_speed(plan: Plan, run: RunResult) -> None:
    rehearsal = compare(plan, run, 2.0)
    first, second = rehearsal.clusters
    assert first.samples_per_s.predicted == pytest.approx(100.0)
    assert first.samples_per_s.achieved == pytest.approx(100.0)
    assert first.samples_per_s.ratio == pytest.approx(1.0)
    assert second.samples_per_s.predicted == pytest.approx(4 / 0.0666)
    assert second.samples_per_s.achieved == pytest.approx(50.0)
    assert second.step_s.achieved == pytest.approx(0.080)
    assert rehearsal.samples_per_s.achieved == pytest.approx(150.0)
    assert rehearsal.averaging_s.predicted == 0.75
    assert rehearsal.averaging_s.achieved == pytest.approx(0.8)


def test_busy_shares_and_memory_do_not_depend_on_the_speed(plan: Plan, run: RunResult) -> None:
    rehearsal = compare(plan, run, 2.0)
    first, second = rehearsal.clusters
    assert (first.bottleneck, second.bottleneck) == ("c0.s1", "c1.s0")
    assert [stage.busy.predicted for stage in first.stages] == pytest.approx([0.5, 1.0])
    assert [stage.busy.achieved for stage in first.stages] == [0.5, 0.99]
    assert rehearsal.stages[0].memory_bytes.ratio == pytest.approx(0.98)
    assert (first.window, second.window) == (
        Compared(plan.clusters[0].window, 12),
        Compared(plan.clusters[1].window, None),
    )
    assert (first.mean_staleness, first.max_staleness, rehearsal.staleness_bound) == (0.5, 1, 1)


def test_the_latest_links_are_told_in_the_plans_time(plan: Plan, run: RunResult) -> None:
    assert compare(plan, run, 2.0).links_late_s is None
    late = [replace(each, link_late_s=0.001 * place) for place, each in enumerate(run.stages)]
    rehearsal = compare(plan, replace(run, stages=tuple(late)), 2.0)
    assert rehearsal.links_late_s == pytest.approx(0.006)
    assert rehearsal.links_late_share == pytest.approx(0.006 / 0.04)
    assert as_plain(rehearsal)["links_late_share"] == rehearsal.links_late_share
    assert (rehearsal.faithful, rehearsal.unfaithful_in) == (False, ("links",))


def test_what_is_not_scaled_is_told_as_the_share_that_the_speed_makes_of_it(plan: Plan, run: RunResult) -> None:
    assert SHARES.averaging == 0.02
    assert compare(plan, run, 1.0).merges_late_share == 0.0
    assert compare(plan, run, 10.0).merges_late_share == pytest.approx(0.018)
    assert compare(plan, run, 10.0).faithful is True
    assert compare(plan, run, 0.5).merges_late_share == pytest.approx(-0.02)
    assert compare(plan, run, 0.4).unfaithful_in == ("merges",)
    assert compare(plan, run, 0.4).faithful is False


def test_a_machine_that_was_late_is_named_with_a_speed_at_which_it_may_keep_up(plan: Plan, run: RunResult) -> None:
    kept_up = compare(plan, run, 2.0)
    assert (kept_up.faithful, kept_up.late_stages, kept_up.suggested_speed) == (True, (), None)
    late = replace(run, stages=(*run.stages[:2], figures("c1.s0", 0.04, 0.8, 0.25), figures("c1.s1", 0.04, 0.4, 0.02)))
    rehearsal = compare(plan, late, 2.0)
    assert (rehearsal.faithful, rehearsal.late_stages, rehearsal.most_late_share) == (False, ("c1.s0",), 0.25)
    assert rehearsal.suggested_speed == 1.2
    assert rehearsal.unfaithful_in == ("computing",)
    far_behind = replace(run, stages=(*run.stages[:3], figures("c1.s1", 0.04, 0.4, 150.0)))
    hopeless = compare(plan, far_behind, 1.0)
    assert (hopeless.late_stages, hopeless.suggested_speed) == (("c1.s1",), None)


def test_a_run_without_a_steady_state_achieves_nothing_that_is_known(plan: Plan, run: RunResult) -> None:
    short = replace(run, stages=(*run.stages[:3], figures("c1.s1", None, 0.0, None)), averaging_s=None)
    rehearsal = compare(plan, short, 1.0)
    assert not rehearsal.steady
    assert rehearsal.samples_per_s.achieved is None
    assert rehearsal.samples_per_s.ratio is None
    assert rehearsal.clusters[0].samples_per_s.achieved is not None
    assert rehearsal.averaging_s.achieved is None
    none = compare(plan, replace(run, stages=()), 1.0)
    assert none.faithful is None
    assert [stage.node for stage in none.stages] == list(NODES.values())


def test_it_is_one_json_document(plan: Plan, run: RunResult) -> None:
    document = json.loads(json.dumps(as_plain(compare(plan, run, 2.0)), allow_nan=False))
    assert document["faithful"] is True
    assert document["clusters"][0]["stages"][1]["step_s"] == {"predicted": 0.04, "achieved": 0.04}


@given(st.floats(0.01, 1000), st.floats(0.02, 100))
def test_the_suggested_speed_is_slower_by_more_than_the_lateness(speed: float, late: float) -> None:
    assert 0 < slower(speed, late) < speed / (1 + late)
    assert slower(speed, late) > 0.5 * speed / (1 + late)


def test_unless_told_it_waits_for_updates_of_the_slowest_cluster_and_for_rounds(plan: Plan) -> None:
    share = (4 / 0.0666) / (4 / 0.0666 + 4 / 0.04)
    updates = UPDATES * 16 / share  # 4 micro-batches of 4 samples are an update
    assert updates < ROUNDS * 512
    made = extent(plan, 1.0)
    assert (made.limit, made.cut_short) == (RunLimit(ROUNDS * 512, LONGEST_S), False)
    assert made.expected_s == pytest.approx(ROUNDS * 512 / 160)
    assert extent(plan, 2.0).expected_s == pytest.approx(ROUNDS * 512 / 320)
    often = replace(plan, workload=replace(plan.workload, average_every=16))
    assert extent(often, 1.0).limit.samples == pytest.approx(updates, abs=1)
    slow = extent(plan, 0.01)
    assert (slow.expected_s, slow.cut_short) == (LONGEST_S, True)


def test_it_goes_on_as_long_as_it_is_told(plan: Plan) -> None:
    assert extent(plan, 2.0, samples=640).limit == RunLimit(samples=640)
    assert extent(plan, 2.0, samples=640).expected_s == pytest.approx(2.0)
    assert extent(plan, 2.0, minutes=0.5).limit == RunLimit(seconds=30.0)
    whole = extent(replace(plan, job={"stop": {"samples": 1600, "minutes": None}}), 2.0, whole=True)
    assert (whole.limit, whole.expected_s) == (RunLimit(), 5.0)
    timed = extent(replace(plan, job={"stop": {"minutes": 4.0}}), 8.0, whole=True)
    assert (timed.limit, timed.expected_s) == (RunLimit(), 30.0)  # as much of the plan's time
