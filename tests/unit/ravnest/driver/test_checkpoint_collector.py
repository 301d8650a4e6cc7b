import dataclasses
import errno
import json
from concurrent.futures import Executor, Future

import pytest
import torch

from ravnest.checkpoints.checkpoint import CheckpointWriter, load_latest
from ravnest.checkpoints.durable_files import DurableFiles
from ravnest.checkpoints.manifest import optimizer_file, segment_file
from ravnest.checkpoints.tensor_stream import PIECE_BYTES, TensorForm, bytes_of, head_of, in_file_order
from ravnest.driver import instructions as ins
from ravnest.driver.checkpoint_collector import MOST_PIECES, CheckpointCollector, parts_of_stages
from ravnest.errors import NotWritten, RunFailed
from ravnest.stage.state_messages import WINDOW, StatePiece, StateSent
from tests.support.local import setups_of, tiny_job

STAGE = "c0.s0"


class Disk(Executor):
    """Writes when it is told to, in order."""

    def __init__(self):
        self.waiting = []
        self.at_once = False

    def submit(self, fn, /, *args, **kwargs):
        future = Future()
        self.waiting.append((future, fn, args))
        if self.at_once:
            self.work()
        return future

    def work(self, most=None):
        """Does the oldest tasks, at most so many."""
        now, self.waiting = self.waiting[:most], self.waiting[len(self.waiting[:most]) :]
        for future, fn, args in now:
            try:
                future.set_result(fn(*args))
            except Exception as error:  # noqa: BLE001 - as an executor does
                future.set_exception(error)


@pytest.fixture
def disk():
    return Disk()


@pytest.fixture
def setups():
    made, _ = setups_of(tiny_job(), parts=(2, 1))
    keeper = next(name for name, setup in made.items() if any(segment.keeper for segment in setup.segments))
    assert keeper == STAGE
    return made


def opener(folder, files=None):
    def begin(begun):
        return CheckpointWriter(
            folder,
            round=begun.round,
            samples=begun.samples,
            versions=begun.updates,
            made_with={},
            lost=begun.lost,
            files=files,
        )

    return begin


@pytest.fixture
def collector(setups, tmp_path, disk):
    made = CheckpointCollector(setups, opener(tmp_path), disk)
    made.begin(ins.BeginCheckpoint(1, 48, {"c0": 2, "c1": 2}))
    return made


def shapes(setup):
    return {spec.name: tuple(spec.shape) for spec in setup.program.weight_specs}


def kept(setup):
    return [name for segment in setup.segments if segment.keeper for name in segment.names]


def data_of(tensors):
    forms = in_file_order(TensorForm.of(name, tensor) for name, tensor in tensors.items())
    parts = [torch.frombuffer(bytearray(head_of(forms)), dtype=torch.uint8)]
    return torch.cat([*parts, *(piece for form in forms for piece in bytes_of(tensors[form.name]))])


def files_of(setup, value=1.0):
    """What the stage sends, by file."""
    files = {}
    for segment in setup.segments:
        if segment.keeper:
            tensors = {name: torch.full(shapes(setup)[name], value) for name in segment.names}
            files[segment_file(segment.ring)] = data_of(tensors)
    trained = setup.segments[0].parameters[0] if setup.segments else None
    state = {f"{trained}.exp_avg": torch.ones(2)} if trained else {}
    return {**files, optimizer_file(setup.cluster, setup.index): data_of(state)}


def send_file(collector, setup, name, data, round_=1, piece_bytes=5000):
    """Send a file in pieces; returns how many they were."""
    pieces = torch.split(data, piece_bytes)
    offset = 0
    for number, piece in enumerate(pieces, start=1):
        header = StatePiece(round=round_, file=name, offset=offset, last=number == len(pieces))
        collector.take(setup.name, header, (piece,))
        offset += piece.numel()
    return len(pieces)


def send(collector, setup, round_=1, value=1.0, files=None):
    files = files_of(setup, value) if files is None else files
    sent = sum(send_file(collector, setup, name, data, round_) for name, data in files.items())
    collector.finish(setup.name, StateSent(round=round_, pieces=sent))


def send_all(collector, setups, round_=1, value=1.0):
    for setup in setups.values():
        send(collector, setup, round_, value)


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
    assert all(bool((tensor == 1.0).all()) for tensor in latest.weights().values())
    first = setups["c1.s0"].segments[0].parameters[0]
    assert set(latest.optimizer("c1", 0)) == {(first, "exp_avg")}
    assert latest.manifest.samples == 48


def test_two_checkpoints_under_way_do_not_mix(collector, setups, tmp_path, disk):
    collector.begin(ins.BeginCheckpoint(2, 96, {"c0": 4, "c1": 4}))
    first, *others = setups.values()
    name, data = next(iter(files_of(first).items()))
    half = len(data) // 2
    collector.take(first.name, StatePiece(round=1, file=name, offset=0, last=False), (data[:half],))
    send_all(collector, setups, round_=2, value=2.0)
    collector.take(first.name, StatePiece(round=1, file=name, offset=half, last=True), (data[half:],))
    rest = {other: data for other, data in files_of(first).items() if other != name}
    sent = sum(send_file(collector, first, other, data) for other, data in rest.items())
    collector.finish(first.name, StateSent(round=1, pieces=sent + 2))
    for setup in others:
        send(collector, setup)
    collector.commit(1)
    disk.work()
    assert {float(tensor.reshape(-1)[0]) for tensor in load_latest(tmp_path, ()).weights().values()} == {1.0}
    collector.commit(2)
    disk.work()
    assert [round_ for _, round_ in collector.written()] == [1, 2]
    latest = load_latest(tmp_path, ())
    assert {float(tensor.reshape(-1)[0]) for tensor in latest.weights().values()} == {2.0}
    assert latest.manifest.round == 2


class ObedientStages:
    """Stages that send as many pieces as there is room for, and no more."""

    def __init__(self, collector, setups, pieces):
        self.collector, self.setups = collector, setups
        self.left = dict.fromkeys(setups, pieces)
        self.room = dict.fromkeys(setups, 0)
        self.offset = dict.fromkeys(setups, 0)
        self.most_waiting = 0
        self.begun = []

    def turn(self):
        for name, grant in self.collector.grants():
            if not self.room[name] and not self.offset[name]:
                self.begun.append(name)
            self.room[name] += grant.pieces
        for name, setup in self.setups.items():
            while self.room[name] and self.left[name] > 1:
                header = StatePiece(round=1, file=next(iter(files_of(setup))), offset=self.offset[name], last=False)
                self.collector.take(name, header, (torch.zeros(10, dtype=torch.uint8),))
                self.offset[name] += 10
                self.room[name] -= 1
                self.left[name] -= 1
        self.most_waiting = max(self.most_waiting, self.collector.pieces)


def test_however_slow_the_disk_is_no_more_than_a_bounded_number_of_pieces_waits(setups, tmp_path, disk, monkeypatch):
    monkeypatch.setattr("ravnest.driver.checkpoint_collector.MOST_PIECES", 2 * WINDOW)  # for two of the three stages
    collector = CheckpointCollector(setups, opener(tmp_path), disk)
    collector.begin(ins.BeginCheckpoint(1, 48, {"c0": 2, "c1": 2}))
    stages = ObedientStages(collector, setups, pieces=30)
    stages.turn()
    assert collector.pieces == 2 * WINDOW
    stages.turn()  # the disk writes nothing: nobody is told to send more
    assert collector.pieces == 2 * WINDOW
    for _ in range(40):
        disk.work(1)
        collector.written()
        stages.turn()
    assert stages.most_waiting == 2 * WINDOW
    assert len(stages.begun) == 2  # the third has its turn when one of them has finished
    assert max(stages.left.values()) == 30


def test_a_stage_that_sends_more_than_there_is_room_for_is_refused(collector, setups):
    name, data = next(iter(files_of(setups[STAGE]).items()))
    with pytest.raises(RunFailed, match=f"{STAGE} sent more pieces of {name} than there is room for"):
        send_file(collector, setups[STAGE], name, data, piece_bytes=100)
    assert collector.pieces == 2 * WINDOW


def test_a_stage_that_has_finished_leaves_its_room_to_the_next(setups, tmp_path, disk, monkeypatch):
    monkeypatch.setattr("ravnest.driver.checkpoint_collector.MOST_PIECES", WINDOW)
    collector = CheckpointCollector(setups, opener(tmp_path), disk)
    collector.begin(ins.BeginCheckpoint(1, 48, {"c0": 2, "c1": 2}))
    told = []
    for setup in setups.values():
        grants = collector.grants()
        assert [(stage, grant.pieces) for stage, grant in grants if stage not in told] == [(setup.name, WINDOW)]
        told.append(setup.name)
        send(collector, setup)
        disk.work()
        collector.written()
    collector.commit(1)
    disk.work()
    assert [round_ for _, round_ in collector.written()] == [1]


def test_a_stage_that_is_lost_while_it_sends_leaves_its_room_too(setups, tmp_path, disk, monkeypatch):
    monkeypatch.setattr("ravnest.driver.checkpoint_collector.MOST_PIECES", WINDOW)
    collector = CheckpointCollector(setups, opener(tmp_path), disk)
    collector.begin(ins.BeginCheckpoint(1, 48, {"c0": 2, "c1": 2}))
    assert [stage for stage, _ in collector.grants()] == [STAGE]
    name, data = next(iter(files_of(setups[STAGE]).items()))
    collector.take(STAGE, StatePiece(round=1, file=name, offset=0, last=False), (data[:10],))
    collector.abandon(1)
    collector.reform({name: setup for name, setup in setups.items() if name != STAGE})
    disk.work()
    collector.written()
    assert [stage for stage, _ in collector.grants()] == ["c0.s1"]


def test_this_process_holds_at_most_128_mib_of_pieces():
    assert MOST_PIECES * PIECE_BYTES == 128 << 20


def test_who_waits_for_the_disk_is_woken_when_it_has_written(setups, tmp_path, disk):
    woken = []
    collector = CheckpointCollector(setups, opener(tmp_path), disk, lambda: woken.append(1))
    collector.begin(ins.BeginCheckpoint(1, 48, {"c0": 2, "c1": 2}))
    send(collector, setups[STAGE])
    assert woken == []
    disk.work()
    assert len(woken) >= 2


def test_a_count_that_does_not_match_is_told(collector, setups):
    sent = sum(send_file(collector, setups[STAGE], *file) for file in files_of(setups[STAGE]).items())
    with pytest.raises(RunFailed, match=f"{STAGE} sent {sent} pieces of its state, not {sent + 1} as it says"):
        collector.finish(STAGE, StateSent(round=1, pieces=sent + 1))


def test_a_missing_file_is_named_even_when_the_count_matches(collector, setups):
    *_, last = files = files_of(setups[STAGE])
    sent = sum(send_file(collector, setups[STAGE], name, data) for name, data in files.items() if name != last)
    with pytest.raises(RunFailed, match=f"{STAGE} did not send all of {last}"):
        collector.finish(STAGE, StateSent(round=1, pieces=sent))


def test_a_piece_that_is_not_the_next_is_refused(collector, setups):
    name, data = next(iter(files_of(setups[STAGE]).items()))
    collector.take(STAGE, StatePiece(round=1, file=name, offset=0, last=False), (data[:10],))
    for wrong in (0, 9, 11):
        with pytest.raises(RunFailed, match=rf"{STAGE} sent {name} from byte {wrong}, where {name} from byte 10 was"):
            collector.take(STAGE, StatePiece(round=1, file=name, offset=wrong, last=False), (data[10:20],))


@pytest.mark.parametrize("name", ["segment-001.safetensors", "optimizer-c1-000.safetensors", "../../evil", "latest"])
def test_a_file_that_is_not_the_stage_s_next_one_is_refused(collector, name):
    with pytest.raises(RunFailed, match=f"{STAGE} sent {name} from byte 0, where segment-000"):
        collector.take(STAGE, StatePiece(round=1, file=name, offset=0, last=True), (torch.zeros(2, dtype=torch.uint8),))


def test_only_the_keeper_of_a_segment_sends_it(collector, setups):
    other = next(setup for setup in setups.values() if not kept(setup))
    with pytest.raises(RunFailed, match=f"{other.name} sent segment-000"):
        send_file(collector, other, *next(iter(files_of(setups[STAGE]).items())))


@pytest.mark.parametrize(
    "tensors",
    [
        (),
        (torch.ones(2, dtype=torch.uint8), torch.ones(2, dtype=torch.uint8)),
        (torch.ones(2),),
        (torch.empty(0, dtype=torch.uint8),),
        (torch.zeros(PIECE_BYTES + 1, dtype=torch.uint8),),
    ],
)
def test_a_piece_is_one_vector_of_bytes_that_is_not_too_long(collector, tensors):
    header = StatePiece(round=1, file="segment-000.safetensors", offset=0, last=False)
    with pytest.raises(RunFailed, match=f"{STAGE} sent a piece of segment-000"):
        collector.take(STAGE, header, tensors)


def spoiled(setup, change):
    """What the stage sends, with its first segment changed."""
    files = files_of(setup)
    segment = next(segment for segment in setup.segments if segment.keeper)
    tensors = {name: torch.zeros(shapes(setup)[name]) for name in segment.names}
    change(tensors, segment.names[0])
    return {**files, segment_file(segment.ring): data_of(tensors)}


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors, first: tensors.pop(first),
        lambda tensors, first: tensors.update({f"{first}x": torch.zeros(2)}),
        lambda tensors, first: tensors.update({first: torch.zeros(2, 77)}),
    ],
    ids=["lacks one", "has another", "another shape"],
)
def test_a_segment_that_is_not_what_the_stage_keeps_ends_the_run(collector, setups, disk, tmp_path, change):
    send(collector, setups[STAGE], files=spoiled(setups[STAGE], change))
    disk.work()
    first = next(segment for segment in setups[STAGE].segments if segment.keeper).names[0]
    with pytest.raises(RunFailed, match=rf"{STAGE} sent segment-000\.safetensors with another {first}"):
        collector.written()
    assert not (tmp_path / "latest").exists()


def test_bytes_that_are_no_file_end_the_run(collector, setups, disk):
    name = next(iter(files_of(setups[STAGE])))
    garbage = torch.full((100,), 7, dtype=torch.uint8)
    collector.take(STAGE, StatePiece(round=1, file=name, offset=0, last=True), (garbage,))
    disk.work()
    with pytest.raises(RunFailed, match=f"{STAGE} sent a broken file: .*{name}"):
        collector.written()


def test_optimizer_state_of_another_stage_s_parameter_is_refused(collector, setups, disk):
    foreign = setups["c0.s1"].segments[0].parameters[0]
    *_, last = files = files_of(setups[STAGE])
    send(collector, setups[STAGE], files={**files, last: data_of({f"{foreign}.exp_avg": torch.ones(2)})})
    disk.work()
    with pytest.raises(RunFailed, match=f"{STAGE} sent optimizer state {foreign}.exp_avg, of no parameter"):
        collector.written()


def test_state_for_a_checkpoint_that_nobody_makes_is_refused(collector, setups):
    with pytest.raises(RunFailed, match="round 3, which is not open"):
        send(collector, setups[STAGE], round_=3)
    with pytest.raises(RunFailed, match="round 3, which is not open"):
        collector.finish(STAGE, StateSent(round=3, pieces=0))


def test_a_stage_that_keeps_nothing_and_has_no_optimizer_state_still_finishes(setups, tmp_path, disk):
    bare = {name: dataclasses.replace(setup, segments=()) for name, setup in setups.items()}
    made = CheckpointCollector(bare, opener(tmp_path / "bare"), disk)
    made.begin(ins.BeginCheckpoint(1, 48, {}))
    send_all(made, bare)
    made.commit(1)
    disk.work()
    assert dict(load_latest(tmp_path / "bare", ()).optimizer("c0", 1)) == {}


class Full(DurableFiles):
    """There is no room for more than so many pieces of a file of this name, until somebody makes some."""

    def __init__(self, name, pieces):
        self.name, self.room = name, pieces

    def write_bytes(self, path, data):
        self._need(path)
        super().write_bytes(path, data)

    def append_bytes(self, path, data):
        self._need(path)
        super().append_bytes(path, data)

    def _need(self, path):
        if path.name == self.name:
            self.room -= 1
            if self.room < 0:
                raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("pieces", [0, 1])
def test_a_disk_that_is_full_costs_one_checkpoint_and_not_the_run(setups, tmp_path, disk, pieces):
    full = Full("segment-000.safetensors", pieces)
    collector = CheckpointCollector(setups, opener(tmp_path, full), disk)
    collector.begin(ins.BeginCheckpoint(1, 48, {"c0": 2, "c1": 2}))
    first, *others = setups.values()
    files = files_of(first)
    name, data = next(iter(files.items()))
    assert len(data) > 10_000
    send_file(collector, first, name, data)
    disk.work()
    assert collector.written() == []
    ((refused, refusal),) = collector.refusals()
    assert refused == 1
    assert "segment-000.safetensors: cannot be written: No space left on device" in str(refusal)
    assert collector.refusals() == []
    collector.grants()
    sent = len(torch.split(data, 5000))
    sent += sum(send_file(collector, first, other, data) for other, data in files.items() if other != name)
    assert {stage for stage, _ in collector.grants()} == {first.name}  # what is dropped has room at once
    collector.finish(first.name, StateSent(round=1, pieces=sent))
    for setup in others:
        send(collector, setup)
    collector.commit(1)
    disk.work()
    assert (collector.written(), collector.refusals(), collector.busy) == ([], [], False)
    assert not (tmp_path / "latest").exists()
    assert list(tmp_path.glob(".unfinished-*")) == []  # which gives a full disk its room back
    with pytest.raises(NotWritten, match="segment-000"):
        collector.require_last()
    full.room = 1000
    collector.begin(ins.BeginCheckpoint(2, 96, {"c0": 4, "c1": 4}))
    send_all(collector, setups, round_=2)
    collector.commit(2)
    disk.work()
    assert collector.written() == [(load_latest(tmp_path, ()).folder, 2)]
    collector.require_last()


def test_a_folder_that_cannot_be_made_costs_one_checkpoint_and_not_the_run(setups, disk):
    def refused(begun):
        raise NotWritten("checkpoints: cannot be written: No space left on device")

    made = CheckpointCollector(setups, refused, disk)
    made.require_last()  # nothing was begun
    made.begin(ins.BeginCheckpoint(1, 48, {"c0": 2, "c1": 2}))
    send_all(made, setups)
    made.commit(1)
    assert [str(error) for _, error in made.refusals()] == ["checkpoints: cannot be written: No space left on device"]
    with pytest.raises(NotWritten):
        made.require_last()


def test_a_checkpoint_without_a_stage_is_not_committed(collector, setups, tmp_path, disk):
    send_all(collector, {name: setup for name, setup in setups.items() if name != "c0.s1"})
    collector.commit(1)
    disk.work()
    with pytest.raises(RunFailed, match=r"it lacks optimizer-c0-001\.safetensors, segment-"):
        collector.written()
    assert not (tmp_path / "latest").exists()


def test_a_checkpoint_that_was_given_up_leaves_nothing_and_can_be_made_again(collector, setups, tmp_path, disk):
    first = setups[STAGE]
    (name, data), *rest = files_of(first).items()
    sent = send_file(collector, first, name, data)
    collector.abandon(1)
    sent += sum(send_file(collector, first, *file) for file in rest)
    collector.finish(STAGE, StateSent(round=1, pieces=sent))
    send(collector, setups["c0.s1"])
    disk.work()
    collector.written()
    assert not collector.busy
    assert list(tmp_path.iterdir()) == []
    left = {name: setup for name, setup in setups.items() if name != "c1.s0"}
    collector.reform(left)
    disk.at_once = True
    collector.begin(ins.BeginCheckpoint(1, 48, {"c0": 2, "c1": 1}, lost=("c1",)))
    send_all(collector, left)
    send(collector, setups["c1.s0"])  # it was on its way when its cluster was lost
    collector.commit(1)
    parts = parts_of_stages(setups.values())
    latest = load_latest(tmp_path, parts)
    assert latest.manifest.lost == ("c1",)
    assert dict(latest.optimizer("c1", 0)) == {}
    assert set(latest.weights()) == set(kept(setups["c0.s0"]) + kept(setups["c0.s1"]))
    assert json.loads((latest.folder / "manifest.json").read_text())["round"] == 1
