from pathlib import Path

import pytest

from ravnest.collaboration.code_bundle import code_hash, collected, require_safe, written
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
