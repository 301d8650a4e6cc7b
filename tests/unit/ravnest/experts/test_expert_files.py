from pathlib import Path

import pytest
import torch

from ravnest.checkpoints.durable_files import DurableFiles
from ravnest.errors import InvalidInput, NotWritten
from ravnest.experts.claims import Kept
from ravnest.experts.expert_files import ExpertFiles
from ravnest.experts.grid import Grid

GRID = Grid("test", (2, 2))
STATE = {"weights.a": torch.arange(3.0), "optimizer.0.step": torch.tensor(5.0)}


def test_what_is_written_is_read_and_listed(tmp_path: Path) -> None:
    files = ExpertFiles(tmp_path / "new", GRID)
    assert files.stored() == {}
    files.write((1, 0), STATE, Kept(2, 7))
    files.write((1, 0), {**STATE, "weights.a": torch.ones(3)}, Kept(2, 8))
    state, kept = files.read((1, 0))
    assert kept == Kept(2, 8)
    assert state.keys() == STATE.keys()
    assert torch.equal(state["weights.a"], torch.ones(3))
    assert files.stored() == {(1, 0): Kept(2, 8)}


class Broken(DurableFiles):
    """Fails when what was written is to be given its name."""

    def move(self, source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")


def test_a_crash_before_the_end_leaves_the_old_file(tmp_path: Path) -> None:
    ExpertFiles(tmp_path, GRID).write((0, 0), STATE, Kept(1, 1))
    broken = ExpertFiles(tmp_path, GRID, Broken())
    with pytest.raises(NotWritten, match=r"0\.0\.safetensors"):
        broken.write((0, 0), STATE, Kept(1, 2))
    assert ExpertFiles(tmp_path, GRID).stored() == {(0, 0): Kept(1, 1)}


def test_other_files_are_left_out_and_broken_ones_are_named(tmp_path: Path) -> None:
    files = ExpertFiles(tmp_path, GRID)
    (tmp_path / "host.key").write_text("key")
    (tmp_path / "7.7.safetensors").write_bytes(b"of another grid")
    assert files.stored() == {}
    (tmp_path / "0.1.safetensors").write_bytes(b"broken")
    with pytest.raises(InvalidInput, match=r"0\.1\.safetensors"):
        files.stored()
    DurableFiles().write_tensors(tmp_path / "0.1.safetensors", STATE)
    with pytest.raises(InvalidInput, match="the term and the updates"):
        files.read((0, 1))
