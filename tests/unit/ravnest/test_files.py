import re
from pathlib import Path

import pytest

from cluster_planner import predicted_again, save_plan
from ravnest.files import read_plan
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
