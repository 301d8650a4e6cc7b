"""What `ravnest run` and `ravnest rehearse` pass to the door, and what they print of its result."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import ravnest
from cluster_planner import Plan
from ravnest.cli import run as run_command
from ravnest.cli.main import app
from ravnest.driver.observe.report import PhaseEvent, RunResult


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, result: RunResult) -> dict[str, Any]:
    given: dict[str, Any] = {"result": result, "phases": ()}

    def run(plan: Path, **options: Any) -> RunResult:
        given.update(options, plan=plan)
        for phase in given["phases"]:
            options["observer"].on(PhaseEvent(phase))
        sys.stdout.write("the job's own words\n")
        options["warn"]("plan.yaml: figures are not of the plan as it stands")
        return given["result"]

    monkeypatch.setattr(ravnest, "run", run, raising=False)
    return given


def test_options_reach_the_door_and_stdout_holds_the_document_alone(asked: dict[str, Any], tmp_path: Path) -> None:
    options = ["--out", str(tmp_path), "--resume", "--encrypt", "--timeline", "--address", "192.0.2.1:6379", "--json"]
    told = CliRunner().invoke(app, ["run", "p.yaml", *options])
    assert told.exit_code == 0, told.output
    assert (asked["plan"], asked["out"], asked["address"]) == (Path("p.yaml"), tmp_path, "192.0.2.1:6379")
    assert all(asked[option] for option in ("resume", "encrypt", "timeline"))
    assert json.loads(told.stdout)["samples"] == 20000
    assert "note: plan.yaml: figures are not of the plan" in told.stderr
    assert "the job's own words" in told.stderr


@pytest.mark.parametrize(("option", "encrypt"), [((), None), (("--no-encrypt",), False), (("--encrypt",), True)])
def test_whether_to_encrypt_is_left_open_unless_it_is_said(
    asked: dict[str, Any], option: tuple[str, ...], encrypt: bool | None
) -> None:
    assert CliRunner().invoke(app, ["run", "p.yaml", *option]).exit_code == 0
    assert asked["encrypt"] is encrypt


def test_without_json_a_summary_is_shown(asked: dict[str, Any]) -> None:
    told = CliRunner().invoke(app, ["run", "p.yaml"])
    assert told.exit_code == 0, told.output
    assert "held-out loss 2.01" in told.output


def test_a_run_that_was_stopped_ends_with_its_own_code(asked: dict[str, Any], result: RunResult) -> None:
    asked["result"] = replace(result, stopped_early=True)
    assert CliRunner().invoke(app, ["run", "p.yaml", "--json"]).exit_code == 130


def test_with_a_page_its_link_is_told_and_the_folder_is_chosen_before(
    asked: dict[str, Any], plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ravnest.save_plan(plan, tmp_path / "p.yaml")
    served: list[object] = []

    @contextmanager
    def page_beside(*given: object) -> Iterator[str]:
        served.append(given)
        yield "http://here"
        served.append("ended")

    monkeypatch.setattr(run_command, "page_beside", page_beside)
    command = ["run", str(tmp_path / "p.yaml"), "--out", str(tmp_path / "r"), "--page", "--page-port", "7"]
    asked["phases"] = ["preparing"]  # where it is refused, nothing is told
    assert "http://here" not in CliRunner().invoke(app, command).output
    asked["phases"] += ["starting Ray", "training"]
    served.clear()
    told = CliRunner().invoke(app, command)
    assert told.exit_code == 0, told.output
    assert served == [(tmp_path / "r", 7), "ended"]
    assert asked["out"] == tmp_path / "r"
    assert told.stderr.count("note: page: http://here") == 1


@pytest.mark.parametrize("option", ["--page", "--detach"])
def test_what_cannot_run_is_refused_before_a_link_is_told_and_a_folder_is_made(
    asked: dict[str, Any], plan: Plan, tmp_path: Path, option: str
) -> None:
    nodes = tuple(replace(node, device="cuda:99") for node in plan.fleet.nodes)
    ravnest.save_plan(replace(plan, fleet=replace(plan.fleet, nodes=nodes)), tmp_path / "p.yaml")
    for name, said in {
        "p.yaml": "nodes.desk.device: the node's device is cuda:99, but",
        "none.yaml": "no such",
    }.items():
        path = tmp_path / name
        told = CliRunner().invoke(app, ["run", str(path), option, "--out", str(tmp_path / "r")])
        assert isinstance(told.exception, ravnest.InvalidInput)
        assert str(told.exception).startswith(f"{path}: {said}")
        assert told.output == ""
    assert "plan" not in asked
    assert not (tmp_path / "r").exists()


def test_a_port_behind_page_is_told_the_option_that_was_meant(asked: dict[str, Any]) -> None:
    refused = CliRunner().invoke(app, ["run", "--page", "8000"])
    assert isinstance(refused.exception, ravnest.InvalidInput)
    assert refused.exception.hint == "the page's port is given as --page-port 8000"
    assert "plan" not in asked
