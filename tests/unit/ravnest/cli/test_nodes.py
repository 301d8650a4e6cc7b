from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cluster_planner import Fleet, Plan, save_fleet, save_plan
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


def test_a_node_that_the_plan_lacks_joins_with_a_nodes_yaml(tmp_path: Path, plan: Plan) -> None:
    save_plan(plan, tmp_path / "plan.yaml")
    (tmp_path / LOCK).touch()
    new = replace(plan.fleet.nodes[0], name="new")
    nodes = tmp_path / "nodes.yaml"
    save_fleet(Fleet((*plan.fleet.nodes, new), plan.fleet.links, plan.fleet.regions), nodes)
    done = RUNNER.invoke(app, ["join", str(tmp_path), "new", "--nodes", str(nodes)])
    assert done.exit_code == 0, done.output
    (request,) = take_requests(tmp_path)
    assert request.fleet is not None
    assert (request.kind, request.node, request.fleet.node("new")) == ("join", "new", new)
    told = RUNNER.invoke(app, ["join", str(tmp_path), "nobody", "--nodes", str(nodes)])
    assert "no node is named 'nobody'" in str(told.exception)


def test_what_cannot_be_asked_is_told(tmp_path: Path, plan: Plan) -> None:
    told = RUNNER.invoke(app, ["leave", str(tmp_path), "tower"])
    assert str(told.exception).endswith("no run goes on here")
    save_plan(plan, tmp_path / "plan.yaml")
    (tmp_path / LOCK).touch()
    told = RUNNER.invoke(app, ["leave", str(tmp_path), "towr"])
    assert "no node is named 'towr'" in str(told.exception)
    assert take_requests(tmp_path) == []


def test_either_a_node_or_a_ray_cluster_joins(tmp_path: Path) -> None:
    for words in ([], ["desk", "--address", "192.0.2.1:6379"]):
        told = RUNNER.invoke(app, ["join", str(tmp_path), *words])
        assert "name a node, or with --address" in str(told.exception)
