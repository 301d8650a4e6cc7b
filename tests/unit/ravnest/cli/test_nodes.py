from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from typer.testing import CliRunner

from cluster_planner import Fleet, Plan, save_fleet, save_plan
from ravnest.checkpoints.run_lock import LOCK, RunLock
from ravnest.cli.main import app
from ravnest.driver.node_requests import NodeRequest, take_requests

RUNNER = CliRunner()


@pytest.fixture
def run(tmp_path: Path, plan: Plan) -> Iterator[Path]:
    """The folder of a run that goes on."""
    (tmp_path / "runs/first").mkdir(parents=True)
    save_plan(plan, tmp_path / "runs/first/plan.yaml")
    lock = RunLock(tmp_path / "runs/first")
    yield tmp_path / "runs/first"
    lock.release()


@pytest.mark.parametrize("kind", ["leave", "join"])
def test_a_request_about_a_node_reaches_the_run(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Literal["leave", "join"]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (str(run), run.name):
        done = RUNNER.invoke(app, [kind, name, "tower"])
        assert done.exit_code == 0, done.output
        assert take_requests(run) == [NodeRequest(kind, "tower")]


def test_a_node_that_the_plan_lacks_joins_with_a_nodes_yaml(run: Path, tmp_path: Path, plan: Plan) -> None:
    new = replace(plan.fleet.nodes[0], name="new")
    nodes = tmp_path / "nodes.yaml"
    save_fleet(Fleet((*plan.fleet.nodes, new), plan.fleet.links, plan.fleet.regions), nodes)
    done = RUNNER.invoke(app, ["join", str(run), "new", "--nodes", str(nodes)])
    assert done.exit_code == 0, done.output
    (request,) = take_requests(run)
    assert request.fleet is not None
    assert (request.kind, request.node, request.fleet.node("new")) == ("join", "new", new)
    told = RUNNER.invoke(app, ["join", str(run), "nobody", "--nodes", str(nodes)])
    assert "no node is named 'nobody'" in str(told.exception)


def test_what_cannot_be_asked_is_told(run: Path, tmp_path: Path, plan: Plan) -> None:
    told = RUNNER.invoke(app, ["leave", str(tmp_path), "tower"])
    assert "no run is here" in str(told.exception)
    told = RUNNER.invoke(app, ["leave", str(run), "towr"])
    assert "no node is named 'towr'" in str(told.exception)
    assert take_requests(run) == []


@pytest.mark.parametrize("kind", ["leave", "join"])
def test_a_run_that_was_killed_is_not_asked(tmp_path: Path, plan: Plan, kind: str) -> None:
    save_plan(plan, tmp_path / "plan.yaml")
    (tmp_path / LOCK).touch()
    told = RUNNER.invoke(app, [kind, str(tmp_path), "tower"])
    assert "no run goes on here: it is killed" in str(told.exception)
    assert take_requests(tmp_path) == []


def test_either_a_node_or_a_ray_cluster_joins(tmp_path: Path) -> None:
    for words in ([], ["desk", "--address", "192.0.2.1:6379"]):
        told = RUNNER.invoke(app, ["join", str(tmp_path), *words])
        assert "name a node, or with --address" in str(told.exception)
