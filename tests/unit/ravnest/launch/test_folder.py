import pytest

from ravnest.errors import InvalidInput
from ravnest.launch import folder as f


@pytest.fixture
def plan_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "plan.yaml"
    path.write_text("version: 1\n")
    return path


def test_a_new_run_gets_a_folder_with_a_copy_of_its_plan(plan_path, tmp_path):
    made = f.open_folder(plan_path, tmp_path / "deep" / "er", resume=False)
    assert made.plan.read_text() == "version: 1\n"
    assert {made.metrics.parent, made.weights.parent, made.loss_curve.parent, made.summary.parent} == {made.path}


def test_without_a_name_it_goes_under_runs(plan_path, tmp_path):
    made = f.open_folder(plan_path, None, resume=False)
    assert made.path.parent.resolve() == (tmp_path / "runs").resolve()


def test_an_empty_folder_may_be_given(plan_path, tmp_path):
    (tmp_path / "out").mkdir()
    assert f.open_folder(plan_path, tmp_path / "out", resume=False).plan.is_file()


def test_a_folder_with_something_in_it_is_left_alone(plan_path, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "weights.safetensors").write_text("precious")
    with pytest.raises(InvalidInput, match="is not empty: add --resume"):
        f.open_folder(plan_path, tmp_path / "out", resume=False)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["weights.safetensors"]


def test_a_file_is_no_folder(plan_path, tmp_path):
    with pytest.raises(InvalidInput, match="is a file"):
        f.open_folder(plan_path, plan_path, resume=False)
    assert plan_path.read_text() == "version: 1\n"


def test_a_resume_goes_on_in_the_named_folder_and_keeps_its_plan(plan_path, tmp_path):
    (tmp_path / "out" / "checkpoints").mkdir(parents=True)
    (tmp_path / "out" / "plan.yaml").write_text("as it was")
    found = f.open_folder(plan_path, tmp_path / "out", resume=True)
    assert found.plan.read_text() == "as it was"


@pytest.mark.parametrize("name", ["missing", "empty", "plan.yaml"])
def test_a_resume_needs_checkpoints(plan_path, tmp_path, name):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidInput, match="no checkpoint here"):
        f.open_folder(plan_path, tmp_path / name, resume=True)


def test_a_resume_without_a_name_takes_the_latest_run_that_has_checkpoints(plan_path, tmp_path):
    for name in ("20250101-000000", "20260101-000000"):
        (tmp_path / "runs" / name / "checkpoints").mkdir(parents=True)
    (tmp_path / "runs" / "20270101-000000").mkdir()
    assert f.open_folder(plan_path, None, resume=True).path.name == "20260101-000000"


def test_a_resume_without_any_run_says_so(plan_path):
    with pytest.raises(InvalidInput, match="no run with a checkpoint"):
        f.open_folder(plan_path, None, resume=True)
