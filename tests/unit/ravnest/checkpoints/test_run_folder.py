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


def test_a_resume_without_a_name_takes_the_latest_run_that_has_a_checkpoint(here):
    for name in ("20250101-000000", "20260101-000000"):
        run_with_checkpoint(here / "runs" / name)
    (here / "runs" / "20270101-000000" / "checkpoints").mkdir(parents=True)
    assert f.choose_folder(None, resume=True).path.name == "20260101-000000"


def test_a_resume_without_any_run_says_so(here):
    with pytest.raises(InvalidInput, match="no run with a checkpoint"):
        f.choose_folder(None, resume=True)
