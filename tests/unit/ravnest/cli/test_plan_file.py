import re
from pathlib import Path

import pytest

from cluster_planner.advice.plan_warnings import predicted_again
from cluster_planner.files.yaml_files import save_plan
from ravnest.cli.plan_file import read_plan
from tests.unit.ravnest.simulator.test_fleet_of_plan import home_plan


def test_a_plan_that_was_edited_is_told_as_such_and_predicted_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.yaml"
    save_plan(predicted_again(home_plan()), path)
    plan, again = read_plan(path)
    assert again is plan
    assert capsys.readouterr().err == ""
    slowed = re.sub(r"gflops: [\d.e+]+", "gflops: 0.001", path.read_text(encoding="utf-8"))
    path.write_text(slowed, encoding="utf-8")
    plan, again = read_plan(path)
    assert again.predicted.samples_per_s < plan.predicted.samples_per_s
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"note: {path}: figures under predicted are not of the plan as it stands")
