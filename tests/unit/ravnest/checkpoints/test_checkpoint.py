import errno
import json
import shutil

import pytest
import torch

from ravnest.checkpoints.checkpoint import CheckpointWriter, go_back, load_latest
from ravnest.checkpoints.durable_files import DurableFiles
from ravnest.errors import InvalidInput, NotWritten, RunFailed

OPERATIONS = (
    "make_folder",
    "write_bytes",
    "append_bytes",
    "sync_file",
    "sync_folder",
    "move",
    "remove_file",
    "remove_folder",
)

PARTS = {
    "segment-000.safetensors",
    "segment-001.safetensors",
    "optimizer-c0-000.safetensors",
    "optimizer-home%2F1-001.safetensors",
}


class Crash(BaseException):
    """The process is gone."""


class CrashingFiles(DurableFiles):
    """Does so many operations and no more; each one done is noted. The one it dies in is half done if it can be."""

    def __init__(self, operations=10**9, *, half=False):
        self.left = operations
        self.half = half
        self.done = []

    def _do(self, name, *arguments):
        if self.left == 0:
            if self.half and name in ("write_bytes", "append_bytes"):
                with arguments[0].open("ab") as file:
                    file.write(arguments[1][: len(arguments[1]) // 2])
            if self.half and name == "remove_folder":
                next(path for path in sorted(arguments[0].iterdir())).unlink()
            raise Crash
        self.left -= 1
        getattr(DurableFiles, name)(self, *arguments)
        self.done.append((name, *(getattr(argument, "name", None) for argument in arguments)))


for _name in OPERATIONS:
    setattr(CrashingFiles, _name, lambda self, *arguments, _name=_name: self._do(_name, *arguments))


def weights_of(round_):
    return {"a.weight": torch.full((2, 3), float(round_)), "b.steps": torch.tensor(round_)}


def state_of(round_):
    return {("a.weight", "exp_avg"): torch.full((2, 3), round_ + 0.5), ("a.weight", "step"): torch.tensor(1.0 * round_)}


def begun(folder, round_, files=None):
    """A checkpoint with all but its last part."""
    writer = CheckpointWriter(
        folder,
        round=round_,
        samples=100 * round_,
        versions={"c0": round_, "home/1": 0},
        made_with={"model": "f"},
        files=files,
    )
    weights = weights_of(round_)
    writer.add_segment(0, {"a.weight": weights["a.weight"]})
    writer.add_optimizer("c0", 0, state_of(round_))
    writer.add_segment(1, {"b.steps": weights["b.steps"]})
    return writer


def write(folder, round_, files=None):
    writer = begun(folder, round_, files)
    writer.add_optimizer("home/1", 1, {})
    return writer.commit(PARTS)


def check(folder, *rounds):
    """The latest checkpoint is whole and of one of these rounds; returns which."""
    checkpoint = load_latest(folder, PARTS)
    round_ = checkpoint.manifest.round
    assert round_ in rounds
    assert checkpoint.manifest.samples == 100 * round_
    assert checkpoint.manifest.versions == {"c0": round_, "home/1": 0}
    for got, wrote in (
        (checkpoint.weights(), weights_of(round_)),
        (checkpoint.optimizer("c0", 0), state_of(round_)),
        (checkpoint.optimizer("home/1", 1), {}),
    ):
        assert got.keys() == wrote.keys()
        assert all(torch.equal(got[key], wrote[key]) and got[key].dtype == wrote[key].dtype for key in wrote)
    return round_


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_what_is_written_is_read(tmp_path):
    folder = tmp_path / "run" / "checkpoints"
    path = write(folder, 1)
    assert path == folder / "checkpoint-000001"
    assert names(path) == [
        "manifest.json",
        "optimizer-c0-000.safetensors",
        "optimizer-home%2F1-001.safetensors",
        "segment-000.safetensors",
        "segment-001.safetensors",
    ]
    assert check(folder, 1) == 1


def test_only_the_named_weights_are_read(tmp_path):
    write(tmp_path, 1)
    checkpoint = load_latest(tmp_path, PARTS)
    assert set(checkpoint.weights({"b.steps", "unknown"})) == {"b.steps"}
    assert checkpoint.weights(()) == {}


def test_a_stage_that_the_checkpoint_does_not_know(tmp_path):
    write(tmp_path, 1)
    with pytest.raises(InvalidInput, match="no optimizer state of stage 2 of 'c0'"):
        load_latest(tmp_path, PARTS).optimizer("c0", 2)


def test_the_last_two_are_kept(tmp_path):
    for round_ in range(1, 5):
        write(tmp_path, round_)
        check(tmp_path, round_)
    assert names(tmp_path) == ["checkpoint-000003", "checkpoint-000004", "latest"]


def test_more_or_fewer_are_kept_where_the_run_says_so(tmp_path):
    for round_ in range(1, 6):
        writer = CheckpointWriter(
            tmp_path, round=round_, samples=0, versions={}, made_with={}, keep=4 if round_ < 5 else 1
        )
        writer.commit(())
        if round_ == 4:
            assert names(tmp_path) == [f"checkpoint-{number:06d}" for number in range(1, 5)] + ["latest"]
    assert names(tmp_path) == ["checkpoint-000005", "latest"]


def test_two_under_way_at_once(tmp_path):
    write(tmp_path, 1)
    arguments = {"samples": 0, "versions": {}, "made_with": {}}
    first, second = (CheckpointWriter(tmp_path, round=round_, **arguments) for round_ in (2, 3))
    for writer in (second, first):
        writer.add_segment(0, {})
    assert [first.commit(()).name, second.commit(()).name] == ["checkpoint-000002", "checkpoint-000003"]
    assert load_latest(tmp_path, ()).manifest.round == 3


def test_a_part_comes_once(tmp_path):
    writer = CheckpointWriter(tmp_path, round=1, samples=0, versions={}, made_with={})
    writer.add_segment(0, {})
    with pytest.raises(ValueError, match=r"segment-000.safetensors is in this checkpoint already"):
        writer.add_segment(0, {})


def test_what_lacks_a_part_is_not_committed(tmp_path):
    write(tmp_path, 1)
    with pytest.raises(RunFailed, match=r"round 2 is not complete: it lacks optimizer-home%2F1-001\.safetensors$"):
        begun(tmp_path, 2).commit(PARTS)
    check(tmp_path, 1)
    assert names(tmp_path / "checkpoint-000001") == ["manifest.json", *sorted(PARTS)]


class FullForOne(DurableFiles):
    def __init__(self, name):
        self.name = name

    def write_bytes(self, path, data):
        if path.name == self.name:
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write_bytes(path, data)


@pytest.mark.parametrize("parts", [PARTS, ()])
def test_a_part_that_could_not_be_written_is_not_left_out(tmp_path, parts):
    last = "optimizer-home%2F1-001.safetensors"
    writer = begun(tmp_path, 1, FullForOne(last))
    with pytest.raises(RunFailed, match="No space left on device"):
        writer.add_optimizer("home/1", 1, {})
    with pytest.raises(RunFailed, match=f"it lacks {last}"):
        writer.commit(parts)
    assert not (tmp_path / "latest").exists()
    assert not list(tmp_path.glob("checkpoint-*"))


def operations_of_third(tmp_path):
    """The file operations of a checkpoint that also has an old one to drop."""
    files = CrashingFiles()
    folder = tmp_path / "counting"
    write(folder, 1)
    write(folder, 2)
    write(folder, 3, files)
    return files.done


@pytest.mark.parametrize("half", [False, True])
def test_a_crash_between_any_two_operations_leaves_a_whole_checkpoint(tmp_path, monkeypatch, half):
    count = len(operations_of_third(tmp_path))
    assert count > 20
    found = []
    before = tmp_path / "before"
    write(before, 1)
    write(before, 2)
    for operations in range(count):
        folder = shutil.copytree(before, tmp_path / str(operations))
        with pytest.raises(Crash):
            write(folder, 3, CrashingFiles(operations, half=half))
        found.append(check(folder, 2, 3))
        # Whoever resumes is another process; it can write again, and tidies up.
        monkeypatch.setattr("os.getpid", lambda operations=operations: -1 - operations)
        write(folder, 4)
        check(folder, 4)
        assert len(names(folder)) == 3
        assert not [name for name in names(folder) if name.startswith(".")]
    assert found == sorted(found)
    assert {2, 3} == set(found)


def test_a_crash_during_the_first_checkpoint_leaves_none_and_says_so(tmp_path):
    for operations in range(9):
        folder = tmp_path / str(operations)
        with pytest.raises(Crash):
            write(folder, 1, CrashingFiles(operations))
        with pytest.raises(InvalidInput, match="holds no complete checkpoint"):
            load_latest(folder, PARTS)


def test_all_is_synced_before_it_is_named(tmp_path):
    done = operations_of_third(tmp_path)
    moves = [place for place, (name, *_) in enumerate(done) if name == "move"]
    written = [operation[1] for operation in done[: moves[0]] if operation[0] == "write_bytes"]
    synced = [operation[1] for operation in done[: moves[0]] if operation[0] == "sync_file"]
    assert written == synced
    assert done[moves[0] - 1][0] == done[moves[0] + 1][0] == "sync_folder"
    assert done[moves[1] - 1] == ("sync_file", ".latest.new")


def damage_truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


def damage_flip(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "said"),
    [(damage_truncate, "bytes, not"), (damage_flip, "have changed"), (lambda path: path.unlink(), "is missing")],
)
@pytest.mark.parametrize("file", ["segment-001.safetensors", "optimizer-c0-000.safetensors"])
def test_a_damaged_file_is_refused_by_name_and_the_other_is_offered(tmp_path, file, damage, said):
    write(tmp_path, 1)
    path = write(tmp_path, 2)
    damage(path / file)
    with pytest.raises(InvalidInput) as raised:
        load_latest(tmp_path, PARTS)
    assert str(raised.value).startswith(f"{path}: the latest checkpoint is damaged: ")
    assert file in str(raised.value)
    assert said in str(raised.value)
    assert f"to resume from checkpoint-000001, write that name into {tmp_path / 'latest'}" in str(raised.value)
    (tmp_path / "latest").write_text("checkpoint-000001")
    check(tmp_path, 1)


def without(path, file):
    """Take a file out of a checkpoint and out of its manifest."""
    (path / file).unlink()
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest["files"][file]
    (path / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("file", ["segment-001.safetensors", "optimizer-c0-000.safetensors"])
def test_one_that_lacks_a_part_is_refused_by_name_and_a_complete_one_is_offered(tmp_path, file):
    write(tmp_path, 1)
    path = write(tmp_path, 2)
    without(path, file)
    with pytest.raises(InvalidInput) as raised:
        load_latest(tmp_path, PARTS)
    assert str(raised.value) == (
        f"{path}: the latest checkpoint is not complete: it lacks {file};"
        f" to resume from checkpoint-000001, write that name into {tmp_path / 'latest'}"
    )
    (tmp_path / "latest").write_text("checkpoint-000001")
    check(tmp_path, 1)


@pytest.mark.parametrize("spoil", [without, lambda path, file: damage_truncate(path / file)])
def test_no_other_is_offered_that_could_not_be_used_either(tmp_path, spoil):
    for path in (write(tmp_path, 1), write(tmp_path, 2)):
        spoil(path, "segment-000.safetensors")
    with pytest.raises(InvalidInput, match=r"the latest checkpoint is .*segment-000.*; no other complete one is kept"):
        load_latest(tmp_path, PARTS)


def test_a_damaged_manifest(tmp_path):
    path = write(tmp_path, 1)
    manifest = json.loads((path / "manifest.json").read_text())
    for text in ("{", json.dumps({**manifest, "format_version": 9})):
        (path / "manifest.json").write_text(text)
        with pytest.raises(
            InvalidInput, match=r"damaged: (is not a manifest|has format version 9).*no other complete one is kept"
        ):
            load_latest(tmp_path, PARTS)
    (path / "manifest.json").unlink()
    with pytest.raises(InvalidInput, match="damaged: No such file"):
        load_latest(tmp_path, PARTS)


@pytest.mark.parametrize(
    "name", ["", "../elsewhere", "checkpoint-1/../..", "notes", "checkpoint-\0", "checkpoint-..", "9" * 99]
)
def test_a_pointer_to_something_else(tmp_path, name):
    write(tmp_path, 1)
    (tmp_path / "latest").write_text(name)
    with pytest.raises(InvalidInput, match="must name a folder checkpoint-NUMBER"):
        load_latest(tmp_path, PARTS)


def test_a_pointer_that_is_no_text(tmp_path):
    write(tmp_path, 1)
    (tmp_path / "latest").write_bytes(b"\xff\xfe\x00checkpoint-000001")
    with pytest.raises(InvalidInput, match="latest: must name a folder checkpoint-NUMBER"):
        load_latest(tmp_path, PARTS)


@pytest.mark.parametrize("folder", [".", "absent"])
def test_no_checkpoint(tmp_path, folder):
    with pytest.raises(InvalidInput, match="holds no complete checkpoint"):
        load_latest(tmp_path / folder, PARTS)


class FullDisk(DurableFiles):
    def sync_file(self, path):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_told_in_one_line(tmp_path):
    with pytest.raises(NotWritten, match=r"segment-000.safetensors: cannot be written: No space left on device"):
        write(tmp_path, 1, FullDisk())


class BeginsAnother(DurableFiles):
    """The next checkpoint begins while an old one is being removed, as the driver's thread may beside the disk's."""

    def __init__(self):
        self.other = None

    def remove_folder(self, path):
        if self.other is None:
            self.other = CheckpointWriter(
                path.parent, round=99, samples=9900, versions={"c0": 99, "home/1": 0}, made_with={"model": "f"}
            )
        super().remove_folder(path)


def test_a_checkpoint_that_begins_while_an_old_one_is_removed_leaves_that_alone(tmp_path):
    files = BeginsAnother()
    for round_ in (1, 2, 3):
        write(tmp_path, round_, files)
    assert files.other is not None
    assert load_latest(tmp_path, PARTS).manifest.round == 3
    assert not list(tmp_path.glob(".discarded-*"))


@pytest.mark.parametrize("spoil", [without, lambda path, file: damage_truncate(path / file)])
def test_the_newest_complete_one_becomes_the_latest_where_that_cannot_be_used(tmp_path, spoil):
    first = write(tmp_path, 1)
    assert go_back(tmp_path, PARTS) is None, "nothing is wrong"
    spoil(write(tmp_path, 2), "segment-000.safetensors")
    assert go_back(tmp_path, PARTS)[0] == "checkpoint-000001"
    check(tmp_path, 1)
    for pointer in ("checkpoint-000007", "elsewhere"):
        (tmp_path / "latest").write_text(pointer)
        assert go_back(tmp_path, PARTS) is not None
        check(tmp_path, 1)
    spoil(first, "segment-000.safetensors")
    assert go_back(tmp_path, PARTS) is None, "none is left"
