import dataclasses
from concurrent.futures import Executor, Future

import pytest
import torch

from ravnest.checkpoints.checkpoint import CheckpointWriter, load_latest
from ravnest.driver import control as c
from ravnest.driver.checkpoint_collector import CheckpointCollector
from ravnest.errors import RunFailed
from ravnest.stage import messages as m
from tests.support.local import setups_of, tiny_job

STAGE = "c0.s0"


class Disk(Executor):
    """Writes when it is told to, in order."""

    def __init__(self):
        self.waiting = []

    def submit(self, fn, /, *args, **kwargs):
        future = Future()
        self.waiting.append((future, fn, args))
        return future

    def work(self):
        for future, fn, args in self.waiting:
            try:
                future.set_result(fn(*args))
            except Exception as error:  # noqa: BLE001 - as an executor does
                future.set_exception(error)
        self.waiting.clear()


@pytest.fixture
def disk():
    return Disk()


@pytest.fixture
def setups():
    made, _ = setups_of(tiny_job(), parts=(2, 1))
    keeper = next(name for name, setup in made.items() if any(segment.keeper for segment in setup.segments))
    assert keeper == STAGE
    return made


@pytest.fixture
def collector(setups, tmp_path, disk):
    def begin(begun):
        return CheckpointWriter(
            tmp_path,
            round=begun.round,
            samples=begun.samples,
            versions=begun.updates,
            made_with={},
        )

    made = CheckpointCollector(setups, begin, disk)
    made.begin(c.BeginCheckpoint(1, 48, {"c0": 2, "c1": 2}))
    return made


def kept(setup):
    return [name for segment in setup.segments if segment.keeper for name in segment.names]


def send_weights(collector, setup, round_=1, value=1.0, leave_out=()):
    names = [name for name in kept(setup) if name not in leave_out]
    for name in names:
        header = m.StateTensor(part="weight", name=name, round=round_)
        collector.take(setup.name, header, (torch.full((2,), value),))
    return len(names)


def send_optimizer(collector, setup, name=None, round_=1):
    name = name or setup.segments[0].parameters[0]
    header = m.StateTensor(part="optimizer", name=name, key="exp_avg", round=round_)
    collector.take(setup.name, header, (torch.ones(2),))
    return 1


def send_all(collector, setups, round_=1, value=1.0):
    for name, setup in setups.items():
        sent = send_weights(collector, setup, round_, value) + send_optimizer(collector, setup, round_=round_)
        collector.finish(name, m.StateSent(round=round_, tensors=sent))


def test_what_every_stage_has_sent_becomes_the_latest_checkpoint(collector, setups, tmp_path, disk):
    send_all(collector, setups)
    collector.commit(1)
    assert collector.busy
    assert collector.written() == []
    disk.work()
    latest = load_latest(tmp_path, ())
    assert collector.written() == [(latest.folder, 1)]
    assert not collector.busy
    assert collector.written() == []
    assert set(latest.weights()) == {name for setup in setups.values() for name in kept(setup)}
    first = setups["c1.s0"].segments[0].parameters[0]
    assert set(latest.optimizer("c1", 0)) == {(first, "exp_avg")}
    assert latest.manifest.samples == 48


def test_two_checkpoints_under_way_do_not_mix(collector, setups, tmp_path, disk):
    collector.begin(c.BeginCheckpoint(2, 96, {"c0": 4, "c1": 4}))
    first = setups[STAGE]
    sent = send_weights(collector, first, round_=1, value=1.0)
    send_all(collector, setups, round_=2, value=2.0)
    collector.finish(STAGE, m.StateSent(round=1, tensors=sent))
    for name, setup in setups.items():
        if name != STAGE:
            collector.finish(name, m.StateSent(round=1, tensors=send_weights(collector, setup, 1, 1.0)))
    collector.commit(1)
    disk.work()
    assert {float(tensor[0]) for tensor in load_latest(tmp_path, ()).weights().values()} == {1.0}
    collector.commit(2)
    disk.work()
    assert [round_ for _, round_ in collector.written()] == [1, 2]
    latest = load_latest(tmp_path, ())
    assert {float(tensor[0]) for tensor in latest.weights().values()} == {2.0}
    assert latest.manifest.round == 2


def test_a_count_that_does_not_match_is_told(collector, setups):
    sent = send_weights(collector, setups[STAGE])
    with pytest.raises(RunFailed, match=f"{STAGE} sent {sent} tensors of its state, not {sent + 1}"):
        collector.finish(STAGE, m.StateSent(round=1, tensors=sent + 1))


def test_a_missing_weight_is_named_even_when_the_count_matches(collector, setups):
    left_out = kept(setups[STAGE])[0]
    sent = send_weights(collector, setups[STAGE], leave_out=(left_out,)) + send_optimizer(collector, setups[STAGE])
    with pytest.raises(RunFailed, match=f"{STAGE} did not send {left_out}"):
        collector.finish(STAGE, m.StateSent(round=1, tensors=sent))


def test_a_weight_that_the_stage_does_not_keep_is_refused(collector, setups):
    foreign = kept(setups["c0.s1"])[0]
    assert foreign not in kept(setups[STAGE])
    with pytest.raises(RunFailed, match=f"{STAGE} sent {foreign}, which it does not keep"):
        collector.take(STAGE, m.StateTensor(part="weight", name=foreign, round=1), (torch.ones(2),))


def test_only_the_keeper_of_a_segment_sends_it(collector, setups):
    name = kept(setups[STAGE])[0]
    other = "c1.s0"
    assert any(name in segment.names for segment in setups[other].segments)
    with pytest.raises(RunFailed, match="does not keep"):
        collector.take(other, m.StateTensor(part="weight", name=name, round=1), (torch.ones(2),))


def test_optimizer_state_of_another_stage_s_parameter_is_refused(collector, setups):
    with pytest.raises(RunFailed, match="which it does not train"):
        send_optimizer(collector, setups[STAGE], setups["c0.s1"].segments[0].parameters[0])


@pytest.mark.parametrize("tensors", [(), (torch.ones(2), torch.ones(2))])
def test_a_state_message_brings_one_tensor(collector, setups, tensors):
    header = m.StateTensor(part="weight", name=kept(setups[STAGE])[0], round=1)
    with pytest.raises(RunFailed, match=STAGE):
        collector.take(STAGE, header, tensors)


def test_state_for_a_checkpoint_that_nobody_makes_is_refused(collector, setups):
    with pytest.raises(RunFailed, match="round 3, which is not open"):
        send_weights(collector, setups[STAGE], round_=3)
    with pytest.raises(RunFailed, match="round 3, which is not open"):
        collector.finish(STAGE, m.StateSent(round=3, tensors=0))


def test_a_stage_that_keeps_nothing_and_has_no_optimizer_state_still_finishes(setups, tmp_path, disk):
    bare = {name: dataclasses.replace(setup, segments=()) for name, setup in setups.items()}
    made = CheckpointCollector(
        bare,
        lambda begun: CheckpointWriter(
            tmp_path / "bare", round=begun.round, samples=begun.samples, versions={}, made_with={}
        ),
        disk,
    )
    made.begin(c.BeginCheckpoint(1, 48, {}))
    for name in bare:
        made.finish(name, m.StateSent(round=1, tensors=0))
    made.commit(1)
    disk.work()
    assert load_latest(tmp_path / "bare", ()).optimizer("c0", 1) == {}


def test_a_disk_that_refuses_ends_the_run(collector, setups, tmp_path, disk):
    send_all(collector, setups)
    for unfinished in tmp_path.glob(".unfinished-*"):
        unfinished.rmdir()
    disk.work()
    with pytest.raises(RunFailed, match="cannot be written"):
        collector.written()


def test_after_a_part_that_could_not_be_written_no_checkpoint_is_committed(collector, setups, tmp_path, disk):
    send_all(collector, setups)
    collector.commit(1)
    (unfinished,) = tmp_path.glob(".unfinished-*")
    (unfinished / "optimizer-c1-000.safetensors").mkdir()  # whatever is to be written there cannot be
    disk.work()
    with pytest.raises(RunFailed, match=r"optimizer-c1-000\.safetensors: cannot be written"):
        collector.written()
    with pytest.raises(RunFailed, match=r"it lacks optimizer-c1-000\.safetensors"):
        collector.written()
    assert not (tmp_path / "latest").exists()


def test_a_checkpoint_without_a_stage_is_not_committed(collector, setups, tmp_path, disk):
    send_all(collector, {name: setup for name, setup in setups.items() if name != "c0.s1"})
    collector.commit(1)
    disk.work()
    with pytest.raises(RunFailed, match=r"it lacks optimizer-c0-001\.safetensors, segment-"):
        collector.written()
    assert not (tmp_path / "latest").exists()
