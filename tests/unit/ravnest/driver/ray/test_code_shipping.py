from pathlib import Path

import pytest

from ravnest.driver.ray import code_shipping as under_test
from ravnest.driver.ray.code_shipping import job_code
from ravnest.errors import InvalidInput
from ravnest.job.config import Job
from tests.support.local import tiny_job


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    job = tmp_path / "job"
    for name in (
        "job.yaml",
        "tiny.py",
        "more/inner.py",
        "more/__pycache__/x.pyc",
        ".git/config",
        "runs/a/metrics.jsonl",
    ):
        (job / name).parent.mkdir(parents=True, exist_ok=True)
        (job / name).write_text(name)
    (job / "weights.safetensors").write_bytes(b"x" * 1000)
    (job / "env").mkdir()
    (job / "env/pyvenv.cfg").write_text("")
    (job / "env/python.py").write_text("")
    return job


def shipped(folder: Path, job: Job | None = None, here: Path | None = None, *more: str) -> set[str]:
    code = job_code(job or tiny_job(), folder / "job.yaml", more, here or folder)
    with code.copied() as copy:
        return {str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file()}


def test_the_jobs_folder_goes_without_what_no_run_reads(folder: Path) -> None:
    assert shipped(folder) == {"job.yaml", "tiny.py", "more/inner.py"}


def test_links_are_followed_unless_they_lead_to_where_they_lie(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared/tools.py").write_text("")
    (folder / "tools").symlink_to(tmp_path / "shared")
    for name, target in (("here", folder), ("again", folder), ("root", "/"), ("more/up", folder / "more")):
        (folder / name).symlink_to(target)
    assert shipped(folder) == {"job.yaml", "tiny.py", "more/inner.py", "tools/tools.py"}


def test_what_the_user_lists_stays_here(folder: Path) -> None:
    (folder / ".ravnestignore").write_text("# big\nmore/\n*.txt\n")
    (folder / "notes.txt").write_text("")
    assert shipped(folder) == {"job.yaml", "tiny.py"}


def test_modules_of_the_folder_that_one_works_in_go_along_when_they_are_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere.py").write_text("")
    (tmp_path / "unrelated.py").write_text("")
    (tmp_path / "tiny.py").write_text("another")
    (tmp_path / "package/sub").mkdir(parents=True)
    (tmp_path / "package/sub/mod.py").write_text("")
    job = tiny_job(loss={"factory": "package.sub.mod:loss"})
    found = shipped(folder, job, tmp_path, "elsewhere:data")
    assert found == {"job.yaml", "tiny.py", "more/inner.py", "elsewhere.py", "package/sub/mod.py"}


def test_too_much_is_refused_naming_the_largest(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "LARGEST_BYTES", 10_000)
    (folder / "corpus.bin").write_bytes(b"x" * 20_000)
    with pytest.raises(InvalidInput, match=r"corpus\.bin.*\.ravnestignore") as caught:
        shipped(folder)
    assert caught.value.path == str(folder)


def test_the_copy_is_gone_afterwards(folder: Path) -> None:
    with job_code(tiny_job(), folder / "job.yaml", here=folder).copied() as copy:
        assert (copy / "tiny.py").read_text() == "tiny.py"
    assert not copy.exists()


def test_what_is_called_as_keys_are_stays_here_and_is_named(folder: Path) -> None:
    for name in (
        "id_rsa",
        "id_rsa.pub",
        "Server.PEM",
        "prod.env",
        ".env",
        "more/api.key",
        "secrets.py",
        "secrets/a.txt",
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("")
    code = job_code(tiny_job(), folder / "job.yaml", here=folder)
    assert {str(path) for path in code.kept_back} == {
        "id_rsa",
        "Server.PEM",
        "prod.env",
        "more/api.key",
        "secrets/a.txt",
    }
    assert code.notice is not None
    assert all(str(path) in code.notice for path in code.kept_back)
    assert shipped(folder) == {"job.yaml", "tiny.py", "more/inner.py", "id_rsa.pub", "secrets.py"}
    (folder / ".ravnestignore").write_text("!Server.PEM\n!more/*\nid_rsa\nsecrets/\nprod.env\n")
    assert {"Server.PEM", "more/api.key"} <= shipped(folder)
    assert job_code(tiny_job(), folder / "job.yaml", here=folder).notice is None


def test_of_many_keys_the_first_are_named(folder: Path) -> None:
    for number in range(10):
        (folder / f"{number}.pem").write_text("")
    notice = job_code(tiny_job(), folder / "job.yaml", here=folder).notice
    assert notice is not None
    assert "7.pem and 2 more." in notice


def test_a_file_that_cannot_be_read_is_named(folder: Path) -> None:
    (folder / "odd.bin").symlink_to("/proc/self/mem")  # open to its owner, and unreadable even to root
    with pytest.raises(InvalidInput, match=r"cannot be read \(.*\.ravnestignore") as caught:
        shipped(folder)
    assert caught.value.path == str(folder / "odd.bin")
    (folder / ".ravnestignore").write_text("odd.bin\n")
    assert "odd.bin" not in shipped(folder)
