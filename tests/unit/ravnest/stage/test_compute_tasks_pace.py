"""Imitated paces: exact in the long run, never faster than the node, and what is not made up counts as late."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster_planner import WorkTimes
from ravnest.pipeline import instructions as ins
from ravnest.pipeline.time_ledger import Ledger
from ravnest.stage.compute_tasks import Pacer

TIMES = WorkTimes(forward_s=2.0, backward_s=4.0, input_gradients_s=2.5, weight_gradients_s=1.5, update_s=1.0)


class Stage:
    """A stage on a clock of its own, whose sleep ends `oversleeps_s` too late."""

    def __init__(self, oversleeps_s=0.0):
        self.now_s = 100.0
        self.slept_s = []
        self.oversleeps_s = oversleeps_s
        self.ledger = Ledger()
        self.ledger.enter("input", self.now_s)
        self.pacer = Pacer(TIMES, 3.0, self.ledger, self.sleep, lambda: self.now_s)

    def sleep(self, duration_s):
        self.slept_s.append(duration_s)
        self.now_s += duration_s + self.oversleeps_s

    def does(self, instruction, takes_s, handing_over_s=0.0):
        self.ledger.enter("forward", self.now_s, instruction)
        paced = self.pacer.paced(instruction, lambda: self.works(takes_s))
        self.now_s += handing_over_s
        began_s = self.now_s
        assert paced() == "done"
        self.ledger.computed(began_s, self.now_s)

    def works(self, takes_s):
        self.now_s += takes_s
        return "done"

    def waits(self, seconds):
        self.ledger.enter("input", self.now_s)
        self.now_s += seconds

    def warms_up(self):
        self.does(ins.RunUpdate(0, None), 0.0)
        self.waits(1.0)
        return self


@pytest.mark.parametrize(
    ("instruction", "takes_s"),
    [
        (ins.RunForward(0), 2.0),
        (ins.RunBackward(0), 4.0),
        (ins.RunInputGradients(0), 2.5),
        (ins.RunWeightGradients(0), 1.5),
        (ins.RunUpdate(0, None), 1.0),
        (ins.RunEvaluation(0, 0), 3.0),
    ],
    ids=str,
)
def test_each_piece_of_work_takes_what_the_node_takes(instruction, takes_s):
    stage = Stage()
    stage.does(instruction, 0.5)
    assert stage.now_s == 100.0 + takes_s
    assert stage.slept_s == [takes_s - 0.5]


def test_a_snapshot_and_a_merge_take_what_they_take_here():
    stage = Stage()
    stage.does(ins.TakeSnapshot(1), 0.25)
    stage.does(ins.ApplyMerge(1), 0.25)
    assert (stage.now_s, stage.slept_s) == (100.5, [])


def test_what_is_lost_by_sleeping_and_handing_over_is_made_up():
    stage = Stage(oversleeps_s=0.1).warms_up()
    began_s = stage.now_s
    for number in range(10):
        stage.does(ins.RunForward(number), 0.5, handing_over_s=0.2)
    assert stage.now_s == pytest.approx(began_s + 20.0 + 0.1)  # the last one is late, and only it
    assert stage.pacer.late_s == pytest.approx(0.1)  # of the update's sleep, before the stage waited
    assert stage.pacer.imitated_s == 20.0


def test_nothing_is_made_up_after_a_wait():
    stage = Stage(oversleeps_s=0.5).warms_up()
    stage.does(ins.RunForward(0), 1.0)
    stage.waits(1.0)
    began_s = stage.now_s
    stage.does(ins.RunForward(1), 1.0)
    assert stage.now_s == began_s + 2.5
    assert stage.pacer.late_s == pytest.approx(0.5 + 0.5)


def test_what_is_more_than_a_micro_batch_s_work_is_not_made_up():
    stage = Stage().warms_up()
    stage.does(ins.RunForward(0), 102.0)  # 100 s late
    stage.does(ins.RunForward(1), 0.5)
    assert stage.slept_s == [1.0]  # before: of the update
    assert stage.pacer.late_s == pytest.approx(94.0)
    for number in range(2, 6):
        stage.does(ins.RunForward(number), 0.5)
    assert stage.slept_s == [1.0, 1.5]  # 4.5 s, 3 s, 1.5 s behind, in time
    assert stage.pacer.late_s == pytest.approx(94.0)


def test_a_machine_that_is_too_slow_is_late_by_what_it_takes_beyond():
    stage = Stage().warms_up()
    for number in range(100):
        stage.does(ins.RunForward(number), 2.5)
    assert stage.slept_s == [1.0]
    assert stage.pacer.imitated_s == 200.0
    assert stage.pacer.late_s == pytest.approx(50.0 - 6.5)  # what might still be made up, and the last piece's


def test_what_comes_before_the_first_update_does_not_count():
    stage = Stage()
    stage.does(ins.RunForward(0), 50.0)
    stage.waits(1.0)
    stage.does(ins.RunForward(1), 1.0)
    assert (stage.pacer.late_s, stage.pacer.imitated_s) == (0.0, 0.0)


@given(
    st.lists(st.tuples(st.booleans(), st.sampled_from([0.0, 0.5, 3.0, 9.0]), st.sampled_from([0.0, 0.3])), max_size=40),
    st.sampled_from([0.0, 0.2]),
)
def test_the_node_is_never_ahead_and_lateness_accounts_for_every_delay(pieces, oversleeps_s):
    stage = Stage(oversleeps_s).warms_up()
    due_s = None
    for number, (waits, takes_s, handing_over_s) in enumerate(pieces):
        if waits:
            stage.waits(1.0)
        due_s = stage.now_s if waits or due_s is None else due_s
        stage.does(ins.RunForward(number), takes_s, handing_over_s)
        due_s += TIMES.forward_s
        assert stage.now_s >= due_s - 1e-9
    if due_s is not None:
        assert stage.pacer.imitated_s == pytest.approx(len(pieces) * TIMES.forward_s)
        assert stage.pacer.late_s >= -1e-9
