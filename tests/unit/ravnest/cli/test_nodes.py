from pathlib import Path

import pytest
from typer.testing import CliRunner

from cluster_planner import Plan, save_plan
from ravnest.checkpoints.run_lock import LOCK
from ravnest.cli.main import app
from ravnest.driver.node_requests import NodeRequest, take_requests

RUNNER = CliRunner()


@pytest.mark.parametrize("kind", ["leave", "join"])
def test_a_request_about_a_node_reaches_the_run(tmp_path: Path, plan: Plan, kind: str) -> None:
    save_plan(plan, tmp_path / "plan.yaml")
    (tmp_path / LOCK).touch()
    done = RUNNER.invoke(app, [kind, str(tmp_path), "tower"])
    assert done.exit_code == 0, done.output
    assert [request == NodeRequest(request.kind, "tower") for request in take_requests(tmp_path)] == [True]


def test_what_cannot_be_asked_is_told(tmp_path: Path, plan: Plan) -> None:
    told = RUNNER.invoke(app, ["leave", str(tmp_path), "tower"])
    assert str(told.exception).endswith("no run goes on here")
    save_plan(plan, tmp_path / "plan.yaml")
    (tmp_path / LOCK).touch()
    told = RUNNER.invoke(app, ["leave", str(tmp_path), "towr"])
    assert "no node is named 'towr'" in str(told.exception)
    assert take_requests(tmp_path) == []
