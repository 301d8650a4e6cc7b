import stat
from pathlib import Path

import pytest
import torch

from ravnest.collaboration.backbone_store import BackboneStore
from ravnest.errors import InvalidInput


def test_keys_stay_and_only_the_owner_reads_them(tmp_path: Path) -> None:
    first = BackboneStore(tmp_path / "run", resume=False)
    assert stat.S_IMODE((tmp_path / "run" / "keys.json").stat().st_mode) == 0o600
    assert BackboneStore(tmp_path / "run", resume=True).secrets == first.secrets
    assert first.secrets.backbone_secret not in repr(first.secrets.keys())


def test_the_last_states_are_kept(tmp_path: Path) -> None:
    store = BackboneStore(tmp_path, resume=False)
    assert store.last_state() is None
    for step in (1, 2, 3):
        store.save_state({"weights.w": torch.full((4,), float(step))}, step, keep=2)
    assert len(list(tmp_path.glob("state-*"))) == 2
    found = store.last_state()
    assert found is not None
    assert found[0] == 3
    assert found[1]["weights.w"].tolist() == [3.0] * 4


def test_a_folder_is_neither_taken_twice_nor_resumed_from_nothing(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no collaboration"):
        BackboneStore(tmp_path / "run", resume=True)
    BackboneStore(tmp_path / "run", resume=False)
    with pytest.raises(InvalidInput, match="holds a collaboration"):
        BackboneStore(tmp_path / "run", resume=False)
    (tmp_path / "run" / "keys.json").write_text("{}")
    with pytest.raises(InvalidInput, match="keys"):
        BackboneStore(tmp_path / "run", resume=True)
