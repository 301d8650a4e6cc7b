import pytest

from ravnest.driver.fail_stop import FailStop
from ravnest.errors import NodeLost
from ravnest.stage.messages import STALL_FLOOR_S
from ring_allreduce.rounds import SILENCE_FLOOR_S

NODES = {"c0.s0": "desk", "c0.s1": "laptop"}


def everyone_alive(membership, from_s, to_s, stages=tuple(NODES)):
    """Signs of life each second, without progress; the end of the time is checked."""
    for now_s in range(from_s, to_s):
        for stage in stages:
            membership.heard(stage, float(now_s), progress=False)
    membership.check(to_s - 1)


def test_a_death_names_the_stage_the_node_and_the_cause():
    with pytest.raises(NodeLost, match=r"c0\.s1 on node 'laptop' died: killed by signal 9"):
        FailStop(NODES, 0.0).ended("c0.s1", "killed by signal 9")


def test_a_silent_stage_is_lost_only_past_its_deadline():
    membership = FailStop(NODES, 0.0)
    everyone_alive(membership, 0, 10)
    everyone_alive(membership, 10, 10 + int(SILENCE_FLOOR_S), stages=("c0.s0",))
    membership.check(9.0 + SILENCE_FLOOR_S)
    with pytest.raises(NodeLost, match=r"c0\.s1 on node 'laptop' has been silent for 21 s \(its deadline is 20 s\)"):
        membership.check(9.0 + SILENCE_FLOOR_S + 1.0)


def test_a_stage_that_never_spoke_is_lost_too():
    membership = FailStop(NODES, 100.0)
    membership.check(100.0 + SILENCE_FLOOR_S)
    with pytest.raises(NodeLost, match="silent"):
        membership.check(100.1 + SILENCE_FLOOR_S)


def test_a_stall_names_the_stage_that_stopped_first():
    membership = FailStop(NODES, 0.0)
    for now_s in (1.0, 2.0, 3.0):
        membership.heard("c0.s1", now_s, progress=True)
    membership.heard("c0.s0", 4.0, progress=True)
    everyone_alive(membership, 5, 5 + int(STALL_FLOOR_S))
    for stage in NODES:
        membership.heard(stage, 65.0, progress=False)
    with pytest.raises(NodeLost, match=r"no stage has made progress for 61 s.*c0\.s1 on node 'laptop'"):
        membership.check(65.0)


def test_the_progress_of_one_stage_is_enough():
    membership = FailStop(NODES, 0.0)
    for now_s in range(0, 300, 10):
        everyone_alive(membership, now_s, now_s + 10)
        membership.heard("c0.s0", now_s + 9.5, progress=True)
    membership.check(300.0)


def test_a_slow_run_is_allowed_its_usual_pace():
    """Progress each 30 s: 50 times that is far more than the floor."""
    membership = FailStop(NODES, 0.0)
    for now_s in range(0, 300, 30):
        everyone_alive(membership, now_s, now_s + 30)
        membership.heard("c0.s1", now_s + 29.5, progress=True)
    everyone_alive(membership, 300, 300 + 1400)
    with pytest.raises(NodeLost, match="no stage has made progress"):
        everyone_alive(membership, 1700, 2000)
