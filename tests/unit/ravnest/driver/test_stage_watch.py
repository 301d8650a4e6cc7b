from dataclasses import replace

import pytest

from ravnest.driver.stage_watch import NOBODY_HEARD_S, UNWATCHED_S, StageWatch, Suspicion, stage_watch
from ravnest.errors import NodeLost
from ravnest.stage.messages import STALL_FLOOR_S
from ring_allreduce.rounds import SILENCE_FLOOR_S
from tests.support.local import setups_of, tiny_job

NODES = {"c0.s0": "desk", "c0.s1": "laptop"}


def everyone_alive(watch, from_s, to_s, stages=tuple(NODES)):
    """Signs of life each second, without progress; the end of the time is checked."""
    for now_s in range(from_s, to_s):
        for stage in stages:
            watch.heard(stage, float(now_s), progress=False)
    assert watch.silent(to_s - 1) == []


def test_a_silent_stage_is_lost_only_past_its_deadline():
    watch = StageWatch(NODES, 0.0)
    everyone_alive(watch, 0, 10)
    everyone_alive(watch, 10, 10 + int(SILENCE_FLOOR_S), stages=("c0.s0",))
    assert watch.silent(9.0 + SILENCE_FLOOR_S) == []
    reason = "stage c0.s1 on node 'laptop' has been silent for 21 s (its deadline is 20 s)"
    assert watch.silent(9.0 + SILENCE_FLOOR_S + 1.0) == [("c0.s1", reason)]
    watch.forget("c0.s1")
    assert watch.silent(9.0 + SILENCE_FLOOR_S + 1.0) == []


def test_a_stage_that_never_spoke_is_lost_too():
    watch = StageWatch(NODES, 100.0)
    everyone_alive(watch, 100, 100 + int(SILENCE_FLOOR_S), stages=("c0.s0",))
    assert [stage for stage, _ in watch.silent(100.1 + SILENCE_FLOOR_S)] == ["c0.s1"]


def test_where_nobody_is_heard_nobody_is_given_up_at_once():
    watch = StageWatch(NODES, 0.0)
    everyone_alive(watch, 0, 10)
    for now_s in range(10, 9 + int(NOBODY_HEARD_S)):
        assert watch.silent(float(now_s)) == []
    assert sorted(stage for stage, _ in watch.silent(9.0 + NOBODY_HEARD_S)) == list(NODES)


def test_whoever_is_heard_first_gives_the_others_a_whole_deadline():
    watch = StageWatch(NODES, 0.0)
    everyone_alive(watch, 0, 10)
    assert watch.silent(50.0) == []
    watch.heard("c0.s0", 50.5, progress=True)
    everyone_alive(watch, 51, 51 + int(SILENCE_FLOOR_S), stages=("c0.s0",))
    assert [stage for stage, _ in watch.silent(51.0 + SILENCE_FLOOR_S)] == ["c0.s1"]


def test_a_stage_is_suspected_at_half_its_deadline_and_cleared_when_it_is_heard():
    watch = StageWatch(NODES, 0.0)
    everyone_alive(watch, 0, 10)
    everyone_alive(watch, 10, 20, stages=("c0.s0",))
    assert watch.suspicions() == []
    everyone_alive(watch, 20, 24, stages=("c0.s0",))
    assert watch.suspicions() == [Suspicion("c0.s1", 14.0, SILENCE_FLOOR_S)]
    assert watch.suspicions() == [], "each is told once"
    watch.heard("c0.s1", 25.0, progress=False)
    assert watch.suspicions() == [Suspicion("c0.s1", 16.0, SILENCE_FLOOR_S, heard_again=True)]
    everyone_alive(watch, 25, 40)
    assert watch.suspicions() == []


def test_after_a_silence_of_all_each_that_is_heard_is_cleared_with_its_true_silence():
    watch = StageWatch(NODES, 0.0)
    assert watch.silent(40.0) == []
    assert [each.stage for each in watch.suspicions()] == list(NODES)
    watch.heard("c0.s1", 41.0, progress=False)
    watch.heard("c0.s0", 42.0, progress=False)
    cleared = [(each.stage, each.silent_s, each.heard_again) for each in watch.suspicions()]
    assert cleared == [("c0.s1", 41.0, True), ("c0.s0", 42.0, True)]
    assert watch.silent(42.0) == []


def test_a_stall_names_the_stage_that_stopped_first():
    watch = StageWatch(NODES, 0.0)
    for now_s in (1.0, 2.0, 3.0):
        watch.heard("c0.s1", now_s, progress=True)
    watch.heard("c0.s0", 4.0, progress=True)
    everyone_alive(watch, 5, 5 + int(STALL_FLOOR_S))
    for stage in NODES:
        watch.heard(stage, 65.0, progress=False)
    with pytest.raises(NodeLost, match=r"no stage has made progress for 61 s.*c0\.s1 on node 'laptop'"):
        watch.silent(65.0)


def test_the_progress_of_one_stage_is_enough():
    watch = StageWatch(NODES, 0.0)
    for now_s in range(0, 300, 10):
        everyone_alive(watch, now_s, now_s + 10)
        watch.heard("c0.s0", now_s + 9.5, progress=True)
    assert watch.silent(300.0) == []


def test_a_slow_run_is_allowed_its_usual_pace():
    """Progress each 30 s: 50 times that is far more than the floor."""
    watch = StageWatch(NODES, 0.0)
    for now_s in range(0, 300, 30):
        everyone_alive(watch, now_s, now_s + 30)
        watch.heard("c0.s1", now_s + 29.5, progress=True)
    everyone_alive(watch, 300, 300 + 1400)
    with pytest.raises(NodeLost, match="no stage has made progress"):
        everyone_alive(watch, 1700, 2000)


def test_a_stage_that_comes_later_is_watched_from_then_on():
    watch = StageWatch({"c0.s0": "desk"}, 0.0)
    watch.add("c0.s1", "tower", 1000.0)
    watch.heard("c0.s0", 1000.0 + SILENCE_FLOOR_S, progress=True)
    assert watch.silent(1000.0 + SILENCE_FLOOR_S) == []
    assert watch.node("c0.s1") == "tower"
    watch.heard("c0.s0", 1001.0 + SILENCE_FLOOR_S, progress=True)
    lost = dict(watch.silent(1001.0 + SILENCE_FLOOR_S))
    assert "stage c0.s1 on node 'tower' has been silent" in lost["c0.s1"]


def test_a_stage_whose_actor_is_lost_lives_as_long_as_it_is_heard():
    watch = StageWatch(NODES, 0.0)
    everyone_alive(watch, 0, 10)
    for stage in NODES:
        watch.unwatched(stage, "the actor is gone", 10.0)
    watch.heard("c0.s0", 10.5, progress=False)
    watch.heard("c0.s1", 13.0, progress=False)
    assert watch.silent(10.0 + UNWATCHED_S - 0.1) == []
    lost = [("c0.s0", "stage c0.s0 on node 'desk' died: the actor is gone")]
    assert watch.silent(10.0 + UNWATCHED_S) == lost
    assert watch.silent(10.0 + UNWATCHED_S) == [], "it is told once"


THREE = {"c0.s0": "desk", "c0.s1": "laptop", "c1.s0": "tower"}


class Computing:
    """Three stages that live; those of `busy` finish a computation every so many seconds."""

    def __init__(self, busy, every_s=1):
        self.watch = StageWatch(THREE, 0.0)
        self.now_s, self.busy, self.every_s, self.found = 0, set(busy), every_s, []
        self.resting = set()

    def go_on(self, seconds):
        for _ in range(seconds):
            self.now_s += 1
            for stage in THREE:
                works = stage in self.busy and self.now_s % self.every_s == 0
                self.watch.heard(stage, float(self.now_s), progress=works)
                if works:
                    self.watch.computed(stage, float(self.now_s))
            self.found += self.watch.hung(float(self.now_s), resting=self.resting)
            assert self.watch.silent(float(self.now_s)) == []
        return self


def test_a_cluster_that_computes_nothing_is_hung_and_the_stage_is_named_that_stopped_first():
    run = Computing(THREE).go_on(20)
    run.busy -= {"c0.s1"}
    run.go_on(3)
    run.busy -= {"c0.s0"}
    run.go_on(int(STALL_FLOOR_S))
    assert run.found == []
    ((stage, reason),) = run.go_on(1).found
    assert stage == "c0.s1"
    assert "stage c0.s1 on node 'laptop' answers, but no stage of c0 has computed anything for 61 s" in reason


def test_a_stage_that_waits_for_its_neighbours_is_not_hung():
    run = Computing(("c0.s0", "c1.s0")).go_on(300)
    assert run.found == []


def test_a_cluster_that_waits_for_a_round_is_not_hung_and_the_one_that_it_waits_for_is():
    run = Computing(THREE).go_on(20)
    run.busy = set()
    run.go_on(5)
    run.resting = {"c1"}
    ((stage, _),) = run.go_on(int(STALL_FLOOR_S) - 4).found
    assert stage.startswith("c0")
    run.resting = set()
    run.watch.forget("c0.s0")
    run.watch.forget("c0.s1")
    assert len(run.go_on(int(STALL_FLOOR_S) - 5).found) == 1, "c1 has a whole deadline again"


@pytest.mark.parametrize("usual_s", [1, 3, 7])
def test_a_cluster_that_has_become_ten_times_as_slow_is_not_hung(usual_s):
    run = Computing(THREE, usual_s).go_on(40 * usual_s)
    run.busy, run.every_s = {"c0.s0", "c1.s0"}, 10 * usual_s
    assert run.go_on(30 * usual_s).found == []


def test_where_all_have_stopped_nobody_is_named_for_sure():
    run = Computing(THREE).go_on(20)
    run.busy = set()
    with pytest.raises(NodeLost, match="no stage has made progress"):
        run.go_on(int(STALL_FLOOR_S) + 5)
    assert run.found == []


@pytest.mark.parametrize(("speed", "times"), [(0.01, 100.0), (1.0, 1.0), (100.0, 1.0)])
def test_a_run_of_slowly_imitated_machines_is_given_as_much_longer_to_begin(speed, times):
    _, plan = setups_of(tiny_job(), parts=(2, 1))
    first, *others = plan.predicted.clusters
    slow = replace(plan, predicted=replace(plan.predicted, clusters=(replace(first, round_trip_s=2.0), *others)))
    waits_s = times * 2.0 * 50  # 50 round trips, as stage_watch.py says
    watch = stage_watch(slow, {"c0.s0": "desk", "c0.s1": "laptop"}, 0.0, speed=speed)
    for now_s in range(0, int(waits_s), 10):
        for stage in ("c0.s0", "c0.s1"):
            watch.heard(stage, float(now_s), progress=False)
        assert watch.silent(float(now_s)) == []
    for stage in ("c0.s0", "c0.s1"):
        watch.heard(stage, waits_s + 1.0, progress=False)
    with pytest.raises(NodeLost, match="no stage has made progress"):
        watch.silent(waits_s + 1.0)
