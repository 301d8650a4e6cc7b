from pathlib import Path

import pytest

from ravnest.collaboration.backbone_store import BackboneStore
from ravnest.collaboration.code_bundle import code_hash, collected, not_collected, require_safe, written
from ravnest.collaboration.messages import CODE_BYTES
from ravnest.collaboration.people import People
from ravnest.errors import InvalidInput
from tests.unit.ravnest.collaboration.jobs import job_in


def test_the_code_of_a_folder_arrives_as_it_was_sent(tmp_path: Path) -> None:
    job = job_in(tmp_path / "job")
    (tmp_path / "job" / "weights.bin").write_bytes(b"data stay at home")
    (tmp_path / "job" / "runs").mkdir()
    (tmp_path / "job" / "runs" / "old.py").write_text("")
    files = collected(job)
    assert len(files) == 2
    folder = written(files, tmp_path / "home")
    assert folder.name == code_hash(files)
    assert (folder / "job.yaml").read_bytes() == job.read_bytes()
    (folder / "job.yaml").write_text("changed by somebody")
    assert written(files, tmp_path / "home") == folder
    assert (folder / "job.yaml").read_bytes() == job.read_bytes()


def test_texts_that_do_not_travel_are_named(tmp_path: Path) -> None:
    job = job_in(tmp_path / "job")
    assert not_collected(job) == []
    (job.parent / "tokenizer.json").write_bytes(b" " * (CODE_BYTES + 1))
    (job.parent / "two words.txt").write_text("")
    (job.parent / "weights.bin").write_bytes(b"")
    assert not_collected(job) == ["tokenizer.json", "two words.txt"]
    assert not {"tokenizer.json", "two words.txt", "weights.bin"} & set(collected(job))


def test_the_hash_is_of_names_and_contents() -> None:
    hashes = {
        code_hash(files) for files in ({"a.py": b"b"}, {"a.py": b"c"}, {"b.py": b"b"}, {"a.py": b"b", "c.py": b""})
    }
    assert len(hashes) == 4


@pytest.mark.parametrize(
    "path", ["../up.py", "/etc/x.py", "a/../../b.py", ".hidden.py", "a.so", "a\\b.py", "", "a b.py"]
)
def test_paths_that_leave_the_folder_are_refused(path: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput):
        require_safe(path)
    with pytest.raises(InvalidInput):
        written({path: b""}, tmp_path)


def test_what_a_backbone_keeps_is_never_sent_wherever_it_lies(tmp_path: Path) -> None:
    job = job_in(tmp_path / "job")
    before = collected(job)
    for folder in ("out", "deep/er/out"):
        BackboneStore(tmp_path / "job" / folder, resume=False).save_people(People())
        (tmp_path / "job" / folder / "more").mkdir()
        (tmp_path / "job" / folder / "more" / "notes.txt").write_text("its own")
    assert collected(job) == before  # so the code's hash stays, too, and volunteers come back after a resume
    (tmp_path / "job" / "keys.json").write_text("{}")
    with pytest.raises(InvalidInput, match=r"keys\.json"):
        collected(job)
