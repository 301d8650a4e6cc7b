import pytest

from ravnest.driver.observe.stage_times import StageTimes


def test_the_steady_state_leaves_out_fill_and_drain() -> None:
    times = StageTimes()
    times.told("a", {"start": 50.0, "input": 6.0, "forward": 2.0, "backward": 1.0, "update": 1.0})
    times.told("a", {"start": 50.0, "input": 7.0, "forward": 7.0, "backward": 4.0, "update": 2.0})
    times.draining()
    times.told("a", {"start": 50.0, "input": 17.0, "forward": 7.0, "backward": 4.0, "update": 2.0, "merge": 10.0})
    steady, overall = times.steady("a"), times.overall("a")
    assert steady is not None
    assert overall is not None
    assert steady.seconds == 10.0
    assert (steady.forward, steady.backward, steady.update, steady.compute) == (0.5, 0.3, 0.1, pytest.approx(0.9))
    assert (steady.bubble, steady.waiting) == (0.1, {"input": 0.1})
    assert overall.seconds == 40.0  # before its start a stage is in no pipeline
    assert (overall.averaging, overall.bubble) == (0.25, 0.425)


def test_the_shares_make_the_whole() -> None:
    times = StageTimes()
    states = ("forward", "backward", "update", "snapshot", "merge", "evaluation", "handoff", "window", "lag", "drain")
    times.told("a", {state: 1.0 + number for number, state in enumerate(states)})
    share = times.overall("a")
    assert share is not None
    assert share.compute + share.averaging + share.evaluation + share.handoff + share.bubble == pytest.approx(
        1.0, abs=1e-4
    )
    assert set(share.waiting) == {"window", "lag", "drain"}


def test_without_a_second_update_there_is_no_steady_state() -> None:
    times = StageTimes()
    assert (times.steady("a"), times.overall("a")) == (None, None)
    times.told("a", {"forward": 1.0})
    times.draining()
    times.told("a", {"forward": 1.0, "drain": 1.0})
    assert times.steady("a") is None
    assert times.overall("a") is not None


def test_what_was_done_since_the_last_look() -> None:
    times = StageTimes()
    times.told("a", {"forward": 1.0})
    times.told("b", {"input": 1.0})
    assert {stage: share.compute for stage, share in times.since_last(["a", "b"]).items()} == {"a": 1.0, "b": 0.0}
    times.told("a", {"forward": 2.0, "window": 3.0})
    assert {stage: share.compute for stage, share in times.since_last(["a", "b"]).items()} == {"a": 0.25}


def test_the_steady_state_begins_with_the_first_update_behind_the_first_checkpoint_where_another_follows() -> None:
    times = StageTimes()
    for update in range(3):
        times.told("a", {"forward": 1.0 * update, "input": 9.0 * update}, update)
    assert times.update_s("a") == 10.0
    times.saved()
    assert times.update_s("a") == 10.0  # nothing came since
    times.told("a", {"forward": 3.0, "input": 57.0}, 3)  # was under way while the checkpoint took the links
    assert times.update_s("a") == 20.0
    times.told("a", {"forward": 11.0, "input": 57.0}, 5)
    times.saved()  # the second checkpoint changes nothing
    steady = times.steady("a")
    assert steady is not None
    assert (steady.compute, steady.seconds) == (1.0, 8.0)
    assert times.update_s("a") == 4.0  # two updates
    times.draining()
    times.told("a", {"forward": 99.0, "input": 57.0}, 6)
    assert times.update_s("a") == 4.0


def test_a_stage_with_one_update_has_no_time_per_update() -> None:
    times = StageTimes()
    assert times.update_s("a") is None
    times.told("a", {"forward": 1.0}, 0)
    assert times.update_s("a") is None


def test_a_stage_that_begins_anew_has_the_figures_of_its_new_process() -> None:
    times = StageTimes()
    times.told("a", {"forward": 1.0, "input": 1.0}, 1)
    times.saved()
    times.told("a", {"forward": 100.0, "input": 1.0}, 2)
    times.begins_anew("a")
    assert times.overall("a") is None
    times.told("a", {"forward": 1.0, "input": 3.0}, 2)
    times.told("a", {"forward": 2.0, "input": 6.0}, 3)
    overall, steady = times.overall("a"), times.steady("a")
    assert overall is not None
    assert steady is not None
    assert (overall.forward, overall.seconds) == (0.25, 8.0)
    assert (steady.forward, steady.seconds) == (0.25, 4.0)
