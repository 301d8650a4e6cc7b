"""Bad nodes.yaml files, through the command: exit code 2, one line, the file and the key."""

import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from cluster_planner import Plan, Step, load_plan
from ravnest.cli import main as cli
from ravnest.planning.prepare_plan import UNADVISED, UNTRIED, ExplainedPlan
from ravnest.planning.searching_on import BUDGET_PHASE

JOB = str(Path(__file__).parents[3] / "support" / "jobs" / "job.yaml")
NODE = {"gflops": 0.02, "memory_gb": 4, "up_mbps": 400, "down_mbps": 400}
LINK = "{between: [a, b], latency_ms: 1, mbps: 10}"


def refused(tmp_path: Path, text: str) -> str:
    """What `ravnest plan` says to a nodes.yaml that it refuses, without the file's name."""
    nodes = tmp_path / "nodes.yaml"
    nodes.write_text(text, encoding="utf-8")
    result = CliRunner().invoke(
        cli.app, ["plan", str(nodes), "--job", JOB, "-o", str(tmp_path / "plan.yaml"), "--min-stages", "2"]
    )
    assert isinstance(result.exception, Exception)
    assert not (tmp_path / "plan.yaml").exists()
    (line,), code = cli.describe(result.exception)
    assert code == 2
    assert line.startswith(f"{nodes}: ")
    return line.removeprefix(f"{nodes}: ")


def fleet(*names: str, **more: object) -> str:
    return yaml.safe_dump({"nodes": [{"name": name, **NODE} for name in names], **more})


def constrained(**constraints: object) -> str:
    return fleet("a", "b", "c", constraints=constraints)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("up_mbps: 40", "up_mbps: -40", "nodes[0].up_mbps: must be above 0, not -40"),
        ("up_mbps: 40", "up_mbps: 0", "nodes[0].up_mbps: must be above 0, not 0"),
        ("up_mbps: 40", "up_mbps: .nan", "nodes[0].up_mbps: must be a finite number, not nan"),
        ("up_mbps: 40", "up_mbps: -.inf", "nodes[0].up_mbps: must be "),
        ("up_mbps: 40", "up_mbps: '40'", "nodes[0].up_mbps: must be a number, not the text '40'"),
        ("up_mbps: 40", f"up_mbps: {10**30}", "nodes[0].up_mbps: must be from 1e-09 to 1e+15"),
        ("up_mbps: 40", f"up_mbps: {10**400}", "nodes[0].up_mbps: is too large"),
        ("up_mbps: 40", "up_mbps: 40, hours: 18:30-24", "nodes[0].hours: must be whole hours of the day in UTC"),
        ("up_mbps: 40", "up_mbps: 40, hours: 18", "nodes[0].hours: must be text, not 18"),
        ("name: b", "name: a", "nodes[1].name: 'a' is already the name of nodes[0]; names must be unique"),
        ("latency_ms: 1", "latency_ms: -1", "links[0].latency_ms: must be 0 or more, not -1"),
        ("mbps: 10}", "mbps: 0}", "links[0].mbps: must be above 0, not 0"),
        ("[a, b]", "[a, bb]", "links[0].between: no node is named 'bb'; did you mean 'b'?"),
        ("[a, b]", "[a, a]", "links[0].between: joins 'a' to itself"),
        (LINK, f"{LINK}, {{between: [b, a], latency_ms: 7, mbps: 1}}", "links[1].between: 'b' and 'a' are already"),
        ("links:", "lnks:", "lnks: is not a known key; did you mean 'links'?"),
    ],
)
def test_each_fault_of_the_file_is_one_line(tmp_path: Path, old: str, new: str, said: str) -> None:
    nodes = ", ".join(f"{{name: {name}, gflops: 1, memory_gb: 1, up_mbps: 40, down_mbps: 9}}" for name in "ab")
    text = f"{{nodes: [{nodes}], links: [{LINK}]}}"
    assert refused(tmp_path, text.replace(old, new, 1)).startswith(said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            constrained(pin=[{"node": "a", "cluster": "x"}, {"node": "a", "cluster": "y"}]),
            "constraints.pin[1].node: 'a' is already pinned by constraints.pin[0]",
        ),
        (
            constrained(forbid=[["a", "b"]], pin=[{"node": n, "cluster": "x"} for n in "ab"]),
            "constraints.pin[1].cluster: 'a' and 'b' are both pinned to 'x', and constraints.forbid[0]",
        ),
        (constrained(min_clusters=4), "constraints.min_clusters: must be from 1 to the number of nodes, 3, not 4"),
        (
            constrained(cap=[{"node": "d", "up_mbps": 1}]),
            "constraints.cap[0].node: no node is named 'd'; there are a, b, c",
        ),
        (constrained(cap=[{"node": "a"}]), "constraints.cap[0]: needs memory_gb, up_mbps, or both"),
    ],
)
def test_constraints_that_contradict_each_other_are_one_line(tmp_path: Path, text: str, said: str) -> None:
    assert refused(tmp_path, text).startswith(said)


def test_constraints_that_no_plan_can_meet_together_are_one_line(tmp_path: Path) -> None:
    said = refused(tmp_path, constrained(forbid=[["a", "b"], ["b", "c"], ["a", "c"]]))
    assert said.startswith("constraints: no plan was found that meets all of them (forbid)")


def test_a_fleet_in_two_parts_is_told_of_its_assumptions(tmp_path: Path) -> None:
    nodes, out = tmp_path / "nodes.yaml", tmp_path / "plan.yaml"
    links = [{"between": pair, "latency_ms": 1, "mbps": 400} for pair in (["a", "b"], ["c", "d"])]
    nodes.write_text(fleet("a", "b", "c", "d", links=links, constraints={"min_clusters": 2}), encoding="utf-8")
    result = CliRunner().invoke(
        cli.app, ["plan", str(nodes), "--job", JOB, "-o", str(out), "--explain", "--min-stages", "2"]
    )
    assert result.exit_code == 0, result.output
    words = " ".join(result.stdout.split())
    assert "assumed: nothing is known of the link between" in words
    assert "How it was found" in words
    assert len(load_plan(out).clusters) == 2


def test_what_is_hardly_meant_is_doubted_beside_the_plan(tmp_path: Path) -> None:
    nodes, out = tmp_path / "nodes.yaml", tmp_path / "plan.yaml"
    nodes.write_text(fleet("a", "b", constraints={"cap": [{"node": "a", "up_mbps": 4000}]}), encoding="utf-8")
    result = CliRunner().invoke(cli.app, ["plan", str(nodes), "--job", JOB, "-o", str(out), "--json"])
    assert result.exit_code == 0, result.output
    assert f"ravnest: warning: {nodes}: constraints.cap[0].up_mbps: 4,000 caps nothing: a has 400" in result.stderr
    assert json.loads(result.stdout)["plan"] == str(out)
    assert "planning for 2 nodes: " in result.stderr


def test_a_page_and_a_document_exclude_each_other(tmp_path: Path) -> None:
    (tmp_path / "nodes.yaml").write_text(fleet("a"), encoding="utf-8")
    out = tmp_path / "plan.yaml"
    result = CliRunner().invoke(
        cli.app, ["plan", str(tmp_path / "nodes.yaml"), "--job", JOB, "-o", str(out), "--json", "--page"]
    )
    assert str(result.exception).startswith("--json: ")
    assert not out.exists()


def test_a_machine_that_holds_the_model_may_train_by_itself(tmp_path: Path) -> None:
    nodes, out = tmp_path / "nodes.yaml", tmp_path / "plan.yaml"
    nodes.write_text(fleet("a", "b"), encoding="utf-8")
    given = ["plan", str(nodes), "--job", JOB, "-o", str(out), "--json"]
    result = CliRunner().invoke(cli.app, given)
    assert result.exit_code == 0, result.output
    assert [len(cluster.stages) for cluster in load_plan(out).clusters] == [1, 1]
    simulated = CliRunner().invoke(cli.app, ["simulate", str(out), "--samples", "640", "--json"])
    assert simulated.exit_code == 0, simulated.output
    assert json.loads(simulated.stdout)["samples"] > 0


@pytest.mark.parametrize(("device", "command"), [("cuda:99", "ravnest rehearse"), ("cpu", "ravnest run")])
def test_the_next_command_is_one_that_this_machine_can_obey(tmp_path: Path, device: str, command: str) -> None:
    nodes, out = tmp_path / "nodes.yaml", tmp_path / "plan.yaml"
    nodes.write_text(yaml.safe_dump({"nodes": [{"name": name, **NODE, "device": device} for name in "ab"]}))
    result = CliRunner().invoke(cli.app, ["plan", str(nodes), "--job", JOB, "-o", str(out)])
    assert result.exit_code == 0, result.output
    assert f"Next: {command} {out}\n" in result.stdout
    assert ("which this machine lacks" in " ".join(result.stderr.split())) is (device != "cpu")


def test_a_cluster_has_a_stage_at_the_least(tmp_path: Path) -> None:
    nodes = tmp_path / "nodes.yaml"
    nodes.write_text(fleet("a", "b"), encoding="utf-8")
    given = ["plan", str(nodes), "--job", JOB, "-o", str(tmp_path / "plan.yaml"), "--min-stages", "0"]
    result = CliRunner().invoke(cli.app, given)
    assert isinstance(result.exception, Exception)
    assert cli.describe(result.exception) == (["--min-stages: must be 1 or more, not 0"], 2)


@pytest.mark.parametrize(("seed", "said"), [("-1", "from 0 to 4294967295, not -1"), ("4294967296", "to 4294967295")])
def test_a_seed_that_no_search_takes_is_refused(tmp_path: Path, seed: str, said: str) -> None:
    nodes = tmp_path / "nodes.yaml"
    nodes.write_text(fleet("a", "b"), encoding="utf-8")
    given = ["plan", str(nodes), "--job", JOB, "-o", str(tmp_path / "plan.yaml"), "--seed", seed]
    result = CliRunner().invoke(cli.app, given)
    assert isinstance(result.exception, Exception)
    (line,), code = cli.describe(result.exception)
    assert code == 2
    assert line.startswith("--seed: ")
    assert said in line


def test_hours_that_no_two_nodes_share_are_told_as_such(tmp_path: Path) -> None:
    nodes = [{"name": name, **NODE, "hours": f"{i}-{i + 1}"} for i, name in enumerate("abc")]
    said = refused(tmp_path, yaml.safe_dump({"nodes": nodes}))
    assert said.startswith(
        "nodes: no cluster that holds the model has an hour of the day at which all its nodes are there"
    )


def test_a_path_that_cannot_be_written_is_told_before_anything_is_planned() -> None:
    result = CliRunner().invoke(cli.app, ["plan", "nowhere.yaml", "--job", JOB, "-o", "/proc/new/plan.yaml"])
    assert str(result.exception).startswith("/proc/new/plan.yaml: --output: cannot be written (")


def test_with_a_budget_the_first_plan_is_written_at_once_and_ctrl_c_ends_with_the_best_so_far(
    tmp_path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes, out = tmp_path / "nodes.yaml", tmp_path / "plan.yaml"
    nodes.write_text(fleet("a", "b"), encoding="utf-8")
    better = replace(plan, seed=plan.seed + 1)

    def searching(*_: object, budget: Any, **__: object) -> ExplainedPlan:
        assert budget.seconds == 60
        assert not out.exists()
        budget.first(plan)
        assert load_plan(out).seed == plan.seed
        assert out.with_suffix(".png").exists()
        assert not budget.stop()
        signal.raise_signal(signal.SIGINT)
        assert budget.stop()
        return ExplainedPlan(better, (), 1e9)

    monkeypatch.setattr("ravnest.explain_plan", searching)
    result = CliRunner().invoke(cli.app, ["plan", str(nodes), "--job", JOB, "-o", str(out), "--budget", "60", "--json"])
    assert result.exit_code == 0, result.output
    assert load_plan(out).seed == better.seed


def test_ctrl_c_after_a_budget_s_search_is_an_interruption_as_without_one(
    tmp_path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes, out = tmp_path / "nodes.yaml", tmp_path / "plan.yaml"
    nodes.write_text(fleet("a", "b"), encoding="utf-8")

    def advising(*_: object, budget: Any, **__: object) -> ExplainedPlan:
        budget.first(plan)
        budget.last()
        signal.raise_signal(signal.SIGINT)
        raise AssertionError

    monkeypatch.setattr("ravnest.explain_plan", advising)
    result = CliRunner().invoke(cli.app, ["plan", str(nodes), "--job", JOB, "-o", str(out), "--budget", "60", "--json"])
    assert result.exit_code == 130, result.output
    assert load_plan(out).seed == plan.seed


@pytest.mark.parametrize("as_json", [False, True])
def test_a_search_that_ends_before_its_budget_says_why(
    tmp_path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch, as_json: bool
) -> None:
    nodes, out = tmp_path / "nodes.yaml", tmp_path / "plan.yaml"
    nodes.write_text(fleet("a", "b"), encoding="utf-8")
    ended = Step(BUDGET_PHASE, "the search ended by itself", 1.0, 0.0)
    monkeypatch.setattr("ravnest.explain_plan", lambda *_, **__: ExplainedPlan(plan, (ended,), 1e9))
    given = ["plan", str(nodes), "--job", JOB, "-o", str(out), "--budget", "60"]
    result = CliRunner().invoke(cli.app, [*given, "--json"] if as_json else given)
    assert result.exit_code == 0, result.output
    said = "--budget: the search ended by itself."
    if as_json:
        assert json.loads(result.stdout)["search_ended"] == said
    else:
        assert f"\n{said}\n" in result.stdout


def test_ctrl_c_before_there_is_a_plan_is_an_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, out = tmp_path / "nodes.yaml", tmp_path / "plan.yaml"
    nodes.write_text(fleet("a", "b"), encoding="utf-8")

    def planning(*_: object, **__: object) -> ExplainedPlan:
        signal.raise_signal(signal.SIGINT)
        raise AssertionError

    monkeypatch.setattr("ravnest.explain_plan", planning)
    result = CliRunner().invoke(cli.app, ["plan", str(nodes), "--job", JOB, "-o", str(out), "--budget", "60"])
    assert result.exit_code == 130
    assert not out.exists()
    assert f"there was no plan yet, so that {out} was not written" in " ".join(result.output.split())


@pytest.mark.parametrize("tried", [False, True])
def test_ctrl_c_writes_the_best_plan_so_far_and_says_what_it_lacks(
    tmp_path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch, tried: bool
) -> None:
    nodes, out = tmp_path / "nodes.yaml", tmp_path / "plan.yaml"
    nodes.write_text(fleet("a", "b"), encoding="utf-8")
    worse = replace(plan, seed=7, predicted=replace(plan.predicted, objective=plan.predicted.objective / 2))

    def planning(*_: object, so_far: Any, **__: object) -> ExplainedPlan:
        so_far(plan, UNTRIED)
        so_far(worse, UNADVISED if tried else UNTRIED)
        signal.raise_signal(signal.SIGINT)
        raise AssertionError

    monkeypatch.setattr("ravnest.explain_plan", planning)
    result = CliRunner().invoke(cli.app, ["plan", str(nodes), "--job", JOB, "-o", str(out)])
    assert result.exit_code == 130
    assert load_plan(out).seed == (7 if tried else plan.seed)
    assert out.with_suffix(".png").exists()
    said = " ".join(result.output.split())
    assert f"{out} has the best plan so far: " in said
    assert (UNADVISED if tried else UNTRIED) in said
