import re
from pathlib import Path

import pytest

from cluster_planner import predicted_again, save_plan
from ravnest.errors import InvalidInput
from ravnest.files import fleet_of, job_for, load_plan, plan_of, read_plan, require_writable
from tests.unit.ravnest.simulator.test_fleet import home_plan


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    path = tmp_path / "plan.yaml"
    save_plan(predicted_again(home_plan()), path)
    return path


def test_a_plan_that_was_edited_is_told_as_such_and_predicted_anew(plan_file: Path) -> None:
    told: list[str] = []
    plan, again = read_plan(plan_file, told.append)
    assert again is plan
    assert told == []
    slowed = re.sub(r"gflops: [\d.e+]+", "gflops: 0.001", plan_file.read_text(encoding="utf-8"))
    plan_file.write_text(slowed, encoding="utf-8")
    plan, again = read_plan(plan_file, told.append)
    assert again.predicted.samples_per_s < plan.predicted.samples_per_s
    (line,) = told
    assert line.startswith(f"{plan_file}: figures under predicted are not of the plan as it stands")
    with pytest.warns(UserWarning, match="not of the plan as it stands"):
        read_plan(plan_file)


def test_who_has_no_plan_yet_is_told_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no such file") as told:
        load_plan(tmp_path / "plan.yaml")
    assert told.value.path == str(tmp_path / "plan.yaml")
    assert told.value.hint is not None
    assert "ravnest plan" in told.value.hint


def test_an_object_of_another_type_is_refused_by_its_name() -> None:
    for key, ask in {
        "fleet": lambda: fleet_of({"nodes": []}, None),  # type: ignore[arg-type]
        "job": lambda: job_for(None, {"model": "m"}),  # type: ignore[arg-type]
        "plan": lambda: plan_of({"clusters": []}, None),  # type: ignore[arg-type]
    }.items():
        with pytest.raises(InvalidInput, match="not an object of type dict") as told:
            ask()
        assert told.value.key == key


def test_a_path_at_which_no_file_can_be_made_is_refused_and_the_try_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (Path("/proc/new/plan.yaml"), tmp_path / "file" / "plan.yaml"):
        with pytest.raises(InvalidInput, match=f"^{path}: output: cannot be written \\("):
            require_writable(path, "output")
    require_writable(tmp_path / "new" / "deep" / "plan.yaml", "output")
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]
