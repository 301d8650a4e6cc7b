import errno
import os
import shutil
from pathlib import Path

import pytest

from ravnest.checkpoints import run_folder as f
from ravnest.errors import InvalidInput


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_with_checkpoint(path):
    (path / "checkpoints").mkdir(parents=True)
    (path / "checkpoints" / "latest").write_text("checkpoint-000001\n")
    return path


def test_a_new_run_gets_a_folder_and_keeps_a_copy_of_its_plan(here):
    (here / "plan.yaml").write_text("version: 1\n")
    made = f.choose_folder(here / "deep" / "er", resume=False)
    assert not made.path.exists()
    made.begin(here / "plan.yaml")
    assert made.plan.read_text() == "version: 1\n"
    assert {made.metrics.parent, made.weights.parent, made.loss_curve.parent, made.summary.parent} == {made.path}


def test_the_plan_may_lie_in_the_folder_already(here):
    (here / "run").mkdir()
    (here / "run" / "plan.yaml").write_text("version: 1\n")
    made = f.choose_folder(here / "run", resume=False)
    made.begin(here / "run" / "plan.yaml")
    assert made.plan.read_text() == "version: 1\n"


def test_without_a_name_it_goes_under_runs(here):
    made = f.choose_folder(None, resume=False)
    assert made.path.parent.resolve() == (here / "runs").resolve()
    assert not made.path.exists()  # not before the run begins


def test_a_folder_with_something_in_it_is_left_alone(here):
    (here / "out").mkdir()
    (here / "out" / "weights.safetensors").write_text("precious")
    with pytest.raises(InvalidInput, match=r"holds 'weights\.safetensors', which is no run's"):
        f.choose_folder(here / "out", resume=False)
    assert [path.name for path in (here / "out").iterdir()] == ["weights.safetensors"]


def test_a_run_with_a_checkpoint_is_left_alone(here):
    out = run_with_checkpoint(here / "out")
    (out / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(InvalidInput, match="holds a run already: add --resume"):
        f.choose_folder(out, resume=False)
    assert (out / "metrics.jsonl").read_text() == "{}\n"


def test_a_run_that_failed_before_its_first_checkpoint_leaves_its_folder_usable(here):
    out = here / "out"
    for name in ("logs", "checkpoints"):
        (out / name).mkdir(parents=True)
    (out / "logs" / "c0.s0.log").write_text("died")
    (out / "metrics.jsonl").write_text("{}\n")
    (here / "plan.yaml").write_text("version: 1\n")
    chosen = f.choose_folder(out, resume=False)
    assert (out / "metrics.jsonl").exists()  # until the run begins
    chosen.begin(here / "plan.yaml")
    left = sorted(str(path.relative_to(out)) for path in out.rglob("*"))
    assert left == ["checkpoints", "logs", "plan.yaml"]


def test_logs_of_somebody_else_are_left_alone(here):
    (here / "out" / "logs").mkdir(parents=True)
    (here / "out" / "logs" / "precious.txt").write_text("mine")
    with pytest.raises(InvalidInput, match=r"holds 'logs/precious\.txt', which is no run's"):
        f.choose_folder(here / "out", resume=False)
    assert (here / "out" / "logs" / "precious.txt").read_text() == "mine"


def test_a_file_is_no_folder(here):
    (here / "plan.yaml").write_text("version: 1\n")
    with pytest.raises(InvalidInput, match="is a file"):
        f.choose_folder(here / "plan.yaml", resume=False)
    assert (here / "plan.yaml").read_text() == "version: 1\n"


def test_a_folder_that_cannot_be_made_is_named(here):
    (here / "file").write_text("")
    with pytest.raises(InvalidInput, match=r"cannot be written.*name another with --out"):
        f.choose_folder(here / "file" / "under", resume=False).begin(here / "file")


def test_a_resume_goes_on_in_the_named_folder(here):
    out = run_with_checkpoint(here / "out")
    assert f.choose_folder(out, resume=True).path == out


def test_a_resume_keeps_the_plan_with_which_it_goes_on(here):
    out = run_with_checkpoint(here / "out")
    (out / "plan.yaml").write_text("as it was")
    (here / "plan.yaml").write_text("with a later stop")
    f.choose_folder(out, resume=True).begin(here / "plan.yaml")
    assert (out / "plan.yaml").read_text() == "with a later stop"


@pytest.mark.parametrize("name", ["missing", "empty", "unfinished", "file"])
def test_a_resume_needs_a_checkpoint(here, name):
    (here / "empty").mkdir()
    (here / "unfinished" / "checkpoints").mkdir(parents=True)
    (here / "file").write_text("")
    with pytest.raises(InvalidInput, match="no checkpoint here"):
        f.choose_folder(here / name, resume=True)


def test_a_resume_without_a_name_takes_the_run_that_has_saved_last(here):
    for second, name in enumerate(("first", "20250101-000000", "20260101-000000", "20240101-000000")):
        run = run_with_checkpoint(here / "runs" / name)
        os.utime(run / "checkpoints" / "latest", (second, second))
    (here / "runs" / "20270101-000000" / "checkpoints").mkdir(parents=True)
    assert f.choose_folder(None, resume=True).path.name == "20240101-000000"


def test_a_resume_without_a_name_takes_no_rehearsal(here):
    (here / "plan.yaml").write_text("version: 1\n")
    for second, name in enumerate(("run", "rehearsed")):
        made = f.RunFolder(here / "runs" / name)
        made.begin(here / "plan.yaml", rehearsal=name == "rehearsed")
        run_with_checkpoint(made.path)
        os.utime(made.checkpoints / "latest", (second, second))
    assert f.choose_folder(None, resume=True).path.name == "run"
    shutil.rmtree(here / "runs" / "run")
    with pytest.raises(InvalidInput, match="only 1 of rehearsals, which do not count"):
        f.choose_folder(None, resume=True)
    f.choose_folder(made.path, resume=True).begin(here / "plan.yaml")  # the user has named it
    assert f.choose_folder(None, resume=True).path.name == "rehearsed"


def test_a_rehearsal_that_failed_leaves_its_folder_usable(here):
    (here / "plan.yaml").write_text("version: 1\n")
    f.choose_folder(here / "out", resume=False).begin(here / "plan.yaml", rehearsal=True)
    f.choose_folder(here / "out", resume=False).begin(here / "plan.yaml")
    assert not f.RunFolder(here / "out").is_rehearsal


def test_a_resume_without_any_run_says_so(here):
    with pytest.raises(InvalidInput, match="no run with a checkpoint"):
        f.choose_folder(None, resume=True)


def owned(out_dir, resume=False):
    return f.owned_folder(out_dir, resume=resume, tell=lambda said: pytest.fail(said))


def test_one_run_at_a_time_owns_a_folder(here):
    with owned(here / "out") as first:
        for resume in (False, True):
            with pytest.raises(InvalidInput, match="is in use by process"), owned(here / "out", resume=resume):
                pass
        run_with_checkpoint(first.path)
    with owned(here / "out", resume=True) as again:
        assert again.path == first.path
        with pytest.raises(InvalidInput, match="is in use by process"), owned(here / "out", resume=True):
            pass


def test_a_folder_that_was_made_for_nothing_is_removed_again(here):
    with pytest.raises(InvalidInput, match="no such job"), owned(here / "deep" / "out"):  # noqa: PT012
        assert (here / "deep" / "out").is_dir()
        raise InvalidInput("no such job")
    assert list(here.iterdir()) == []


def test_what_was_there_before_stays(here):
    (here / "out").mkdir()
    with owned(here / "out"):
        pass
    assert [path.name for path in here.iterdir()] == ["out"]
    assert list((here / "out").iterdir()) == []


def test_two_runs_without_a_name_get_two_folders(here, monkeypatch):
    monkeypatch.setattr(f.time, "strftime", lambda form: "20260131-120000" if "%d-" in form else "2026-01-31 12:00:00")
    with owned(None) as first, owned(None) as second, owned(None) as third:
        names = [folder.path.name for folder in (first, second, third)]
    assert names == ["20260131-120000", "20260131-120000_2", "20260131-120000_3"]
    assert list(here.iterdir()) == []


def test_a_run_that_ended_meanwhile_is_not_overwritten(here, monkeypatch):
    """Between the first look into the folder and the lock, another run has come, saved and gone."""
    real = f.RunLock

    def late(folder):
        run_with_checkpoint(folder)
        return real(folder)

    monkeypatch.setattr(f, "RunLock", late)
    with pytest.raises(InvalidInput, match="holds a run already"), owned(here / "out"):
        pass
    assert sorted(path.name for path in (here / "out").iterdir()) == ["checkpoints"]


def test_a_file_system_without_locks_is_told(here, monkeypatch):
    monkeypatch.setattr(f.RunLock, "locks", False, raising=False)
    monkeypatch.setattr(f.RunLock, "__init__", lambda self, folder: None)
    monkeypatch.setattr(f.RunLock, "release", lambda self: None)
    said = []
    with f.owned_folder(here / "out", resume=False, tell=said.append):
        pass
    assert len(said) == 1
    assert "has no locks" in said[0]


def test_a_folder_that_may_not_be_read_is_named(here, monkeypatch):
    def refused(self):
        raise PermissionError(13, "Permission denied")

    (here / "out").mkdir()
    monkeypatch.setattr(f.Path, "iterdir", refused)
    for resume in (False, True):
        with pytest.raises(InvalidInput, match=r"out: cannot be read \(Permission denied\)"):
            f.choose_folder(here / "out", resume=resume)


def test_a_full_disk_leaves_the_plan_of_a_run_that_begins_again_as_it_was(here, monkeypatch):
    """It was emptied, and then no resume could read it."""
    (here / "plan.yaml").write_text("a plan")
    (here / "other.yaml").write_text("another plan")
    run = f.RunFolder(here / "run")
    run.begin(here / "plan.yaml")

    def full(_, to):
        Path(to).write_text("ano")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(f.shutil, "copyfile", full)
    run.begin(here / "plan.yaml", again=True)  # nothing is to be written
    with pytest.raises(InvalidInput, match="No space left on device"):
        run.begin(here / "other.yaml", again=True)
    assert run.plan.read_text() == "a plan"
    assert [each.name for each in run.path.iterdir()] == ["plan.yaml"]
