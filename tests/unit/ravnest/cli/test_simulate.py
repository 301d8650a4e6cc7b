import io
import json
import re
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from cluster_planner import Fleet, Plan, make_plan, save_plan
from ravnest.cli.main import app
from ravnest.cli.views.simulation import show_simulation
from ravnest.cli.views.steps import Steps
from ravnest.errors import Interrupted, InvalidInput
from ravnest.simulator import simulate
from tests.unit.ravnest.simulator.test_fleet import home_plan

JOB = {
    "model": {"factory": "models:small"},
    "data": {"factory": "data:digits"},
    "micro_batch": 4,
    "update_every": 8,
    "average_every": 2048,
    "split_backward": "never",
    "activation_checkpointing": "never",
    "stop": {"samples": 2048},
}
"""Whose workload is that of `home_plan`."""


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "plan.yaml"
    save_plan(home_plan(), path)
    return path


def test_tables_a_picture_and_a_document_come_of_the_plan_alone(plan_file: Path, tmp_path: Path) -> None:
    scenario, out = tmp_path / "scenario.yaml", tmp_path / "out"
    scenario.write_text("stalls: [{node: n1, at_s: 5, for_s: 30}]\n", encoding="utf-8")
    given = ["simulate", str(plan_file), "--samples", "2048", "--scenario", str(scenario), "--out", str(out)]
    told = CliRunner().invoke(app, given)
    assert told.exit_code == 0, told.output
    assert "LEFT THE RUN after" in told.stdout
    assert "samples/s, as nothing is lost" not in told.stdout
    assert (out / "simulated.png").stat().st_size > 10_000
    document = json.loads((out / "simulated.json").read_text(encoding="utf-8"))
    assert document["clusters_lost"][0]["node"] == "n1"
    assert document["samples"] >= 2048


def test_a_folder_that_cannot_be_written_is_told_before_anything_is_simulated() -> None:
    told = CliRunner().invoke(app, ["simulate", "nowhere.yaml", "--out", "/proc/new"])
    assert str(told.exception).startswith("/proc/new/simulated.json: --out: cannot be written (")


def test_a_run_too_short_for_a_steady_state_is_compared_with_nothing(plan_file: Path) -> None:
    for samples in ("1", "600"):
        told = CliRunner().invoke(app, ["simulate", str(plan_file), "--samples", samples])
        assert told.exit_code == 0, told.output
        assert "Too short for a steady state: it holds" in told.stdout
        table = told.stdout.partition("Samples per second")[2].partition("from start to end")[0]
        assert "%" not in table
        document = json.loads(
            CliRunner().invoke(app, ["simulate", str(plan_file), "--samples", samples, "--json"]).stdout
        )
        assert document["too_short"].endswith("and takes 10")
    document = json.loads(CliRunner().invoke(app, ["simulate", str(plan_file), "--samples", "24000", "--json"]).stdout)
    assert document["too_short"] is None


def test_what_of_the_scenario_comes_too_late_is_named(plan_file: Path, tmp_path: Path) -> None:
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text("stalls: [{node: n1, at_s: 50000, for_s: 30}]\n", encoding="utf-8")
    given = ["simulate", str(plan_file), "--samples", "2048", "--scenario", str(scenario)]
    told = CliRunner().invoke(app, given)
    assert "WITHOUT EFFECT" in told.stdout
    assert "stalls[0] (n1 at 50000 s)" in told.stdout
    document = json.loads(CliRunner().invoke(app, [*given, "--json"]).stdout)
    assert document["unreached"] == ["stalls[0] (n1 at 50000 s)"]


def test_ctrl_c_ends_it_with_the_figures_so_far(
    plan_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[float] = []

    def done(_: Steps, part: float) -> None:
        heard.append(part)
        if len(heard) == 2:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Steps, "done", done)
    told = CliRunner().invoke(app, ["simulate", str(plan_file), "--samples", "2000000", "--out", str(tmp_path)])
    assert told.exit_code == Interrupted.exit_code, told.output
    document = json.loads((tmp_path / "simulated.json").read_text(encoding="utf-8"))
    assert document["stopped_early"]
    assert 0 < document["samples"] < 1_000_000
    assert f"{document['samples']:,} samples" in told.stdout
    assert "Samples per second" in told.stdout


def test_a_terminal_sees_how_far_it_is_and_what_is_left(plan_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()

    def shown_on(**options: object) -> Console:
        return Console(file=screen, force_terminal=bool(options.get("stderr")), width=80)

    monkeypatch.setattr("ravnest.cli.views.tables.console", shown_on)
    told = CliRunner().invoke(app, ["simulate", str(plan_file), "--samples", "24000"])
    assert told.exit_code == 0, told.output
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue()).replace("\r", "\n").splitlines()
    bars = [line.rstrip() for line in lines if line.startswith("simulating")]
    assert bars
    assert re.fullmatch(r"simulating .* 100%  .* simulated, [\d,]+ events  left: \d+:\d\d", bars[-1])
    assert max(map(len, bars)) <= 80


def test_unless_told_it_ends_where_the_job_does(tmp_path: Path) -> None:
    save_plan(replace(home_plan(), job=JOB), tmp_path / "plan.yaml")
    told = CliRunner().invoke(app, ["simulate", str(tmp_path / "plan.yaml")])
    assert told.exit_code == 0, told.output
    assert "samples: that is the job's own end (2,048 samples)." in told.stdout
    assert "samples/s, as nothing is lost" in told.stdout


def test_what_a_stage_computes_and_waits_for_are_parts_of_the_same_time(plan_file: Path) -> None:
    result = simulate(home_plan(), samples=512)  # most of it is filling the pipeline
    console = Console(width=200, record=True, file=io.StringIO())
    show_simulation(result, home_plan(), console)
    text = console.export_text()
    for stage in result.stages:
        share = sum(stage.seconds.get(kind, 0.0) for kind in ("forward", "backward", "weights", "update"))
        share += sum(stage.seconds.get(kind, 0.0) for kind in ("snapshot", "merge", "evaluation"))
        (line,) = [line for line in text.splitlines() if f" {stage.name} " in line]
        assert f"{share / sum(stage.seconds.values()):.1%}" in line


def test_one_cluster_averages_with_nobody() -> None:
    def text(plan: Plan) -> str:
        console = Console(width=200, record=True, file=io.StringIO())
        show_simulation(simulate(plan, samples=8192), plan, console)
        return console.export_text()

    home = home_plan()
    pair = make_plan(Fleet(home.fleet.nodes[:2]), home.costs, home.workload, job={}, job_file="job.yaml", min_stages=2)
    assert "averaging" not in text(pair)
    several = text(home)
    assert "rounds of averaging" in several
    assert "by averaging" in several


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--hours", "-1"], "--hours: must be"),
        (["--hours", "1e308"], "--hours: must be"),
        (["--hours", "1", "--samples", "5"], "give one of them"),
        (["--jitter", "-0.5"], "--jitter: must be"),
        (["--scenario", "nowhere.yaml"], "nowhere.yaml: no such file"),
    ],
)
def test_impossible_options_are_refused(plan_file: Path, options: list[str], said: str) -> None:
    told = CliRunner().invoke(app, ["simulate", str(plan_file), *options])
    assert said in str(told.exception)
    assert getattr(told.exception, "exit_code", None) == InvalidInput.exit_code


def test_what_is_wrong_is_looked_for_in_the_file_that_it_is_in(plan_file: Path, tmp_path: Path) -> None:
    wrong, scenario = tmp_path / "wrong.yaml", tmp_path / "scenario.yaml"
    save_plan(replace(home_plan(), job={**JOB, "stop": {"samples": -5}}), wrong)
    told = CliRunner().invoke(app, ["simulate", str(wrong)])
    assert str(told.exception).startswith(f"{wrong}: job.stop.samples: must be")
    scenario.write_text("stalls: [{node: nobody, at_s: 5, for_s: 30}]\n", encoding="utf-8")
    told = CliRunner().invoke(app, ["simulate", str(plan_file), "--scenario", str(scenario)])
    assert str(told.exception).startswith(f"{scenario}: stalls[0].node: no node")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"micro_batch": 32}, "workload.micro_batch: is 4, but job.micro_batch is 32"),
        ({"max_staleness": 2}, "workload.max_staleness: is 1, but job.max_staleness is 2"),
        ({"optimizer": {"name": "sgd", "lr": 0.1}}, "workload.optimizer_state_bytes_per_parameter_byte: is 2.0, but"),
        ({"micro_batsh": 4}, "job.micro_batsh: is not a known key; did you mean 'micro_batch'?"),
    ],
)
@pytest.mark.parametrize("command", ["simulate", "doctor"])
def test_a_plan_whose_job_was_edited_is_refused(
    tmp_path: Path, change: dict[str, object], said: str, command: str
) -> None:
    path = tmp_path / "plan.yaml"
    save_plan(replace(home_plan(), job={**JOB, **change}), path)
    told = CliRunner().invoke(app, [command, str(path)])
    assert str(told.exception).startswith(f"{path}: {said}")
    assert getattr(told.exception, "exit_code", None) == 2


@pytest.mark.parametrize("command", ["simulate", "rehearse", "run", "doctor"])
def test_a_node_with_less_memory_than_its_stage_needs_is_refused_when_the_plan_is_read(
    tmp_path: Path, command: str
) -> None:
    made, path = home_plan(), tmp_path / "plan.yaml"
    nodes = tuple(replace(node, memory_bytes=10**7) if node.name == "n1" else node for node in made.fleet.nodes)
    save_plan(replace(made, fleet=replace(made.fleet, nodes=nodes), job=JOB), path)
    told = CliRunner().invoke(app, [command, str(path)])
    assert str(told.exception).startswith(f"{path}: nodes[n1].memory_gb: is 0.01, but stage ")
    assert getattr(told.exception, "exit_code", None) == 2


def test_a_scenario_and_a_plan_given_for_each_other_are_told_in_one_line(plan_file: Path, tmp_path: Path) -> None:
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text("compute_jitter: 0.1\nstalls: [{node: n1, at_s: 5, for_s: 30}]\n", encoding="utf-8")
    told = CliRunner().invoke(app, ["simulate", str(scenario)])
    said = f"{scenario}: is a scenario (`ravnest simulate --scenario` takes it); expected a plan"
    assert str(told.exception) == said
    told = CliRunner().invoke(app, ["simulate", str(plan_file), "--scenario", str(plan_file)])
    assert str(told.exception) == f"{plan_file}: is a plan (`ravnest run` takes it); expected a scenario"
