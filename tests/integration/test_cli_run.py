"""`ravnest plan` and `ravnest run` as a user starts them: processes, Ray, files; one run, read by all tests."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch.nn import functional

from cluster_planner import PROCESS_BYTES, SpanCosts, load_plan
from ravnest.page.plan_facts import stages_of
from tests.support.commands import JOBS, ravnest, ravnest_process
from tests.support.jobs import tiny

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that went to its end, with the output that its commands printed."""
    folder = shutil.copytree(JOBS, tmp_path_factory.mktemp("whole"), dirs_exist_ok=True)
    made = ravnest_process(folder, "plan", "nodes.yaml", "--min-stages", "2")
    assert made.returncode == 0, made.stderr
    done = ravnest_process(folder, "run", "--out", "r", "--json", "--timeline")
    assert done.returncode == 0, done.stderr
    (folder / "result.json").write_text(done.stdout)
    return folder


def test_the_plan_has_two_clusters_and_a_picture(finished: Path) -> None:
    plan = yaml.safe_load((finished / "plan.yaml").read_text())
    assert [len(cluster["stages"]) for cluster in plan["clusters"]] == [2, 2]
    assert (finished / "plan.png").stat().st_size > 10_000


def test_a_run_learns_and_writes_down_what_it_did(finished: Path) -> None:
    result = json.loads((finished / "result.json").read_text())
    assert result["samples"] >= 960
    assert result["max_staleness"] == 1
    assert result["rounds"] >= 9
    assert result["held_out_loss"] < 0.5 * result["baselines"]["guessing"]
    lines = [json.loads(line) for line in (finished / "r/metrics.jsonl").read_text().splitlines()]
    planned = stages_of(load_plan(finished / "r/plan.yaml", has_run=True))
    came = {stage.stage: stage.round_bytes for each in planned.values() for stage in each}
    assert min(came.values()) > 0
    assert all(line["received"] == came for line in lines if line["kind"] == "round")
    assert [line["losses"] for line in lines if line["kind"] == "baselines"] == [result["baselines"]]
    losses = [line["loss"] for line in lines if line["kind"] == "update" and "loss" in line]
    assert sum(losses[-5:]) < 0.5 * sum(losses[:5])
    assert {"update", "round", "evaluated", "checkpoint", "progress", "phase"} <= {line["kind"] for line in lines}
    assert all(max(line["staleness"]) <= 1 for line in lines if line["kind"] == "update")
    started = [line["process_bytes"] for line in lines if line["kind"] == "stage"]
    assert len(started) == 4
    assert min(started) > 50 << 20  # torch alone is more
    assert (finished / "r/loss.png").stat().st_size > 10_000


def test_it_says_where_each_stages_time_went(finished: Path) -> None:
    result = json.loads((finished / "result.json").read_text())
    assert [stage["stage"] for stage in result["stages"]] == ["c0.s0", "c0.s1", "c1.s0", "c1.s1"]
    for stage in result["stages"]:
        for shares in (stage["steady"], stage["overall"]):
            assert 0 < shares["compute"] < 1
            parts = [shares[part] for part in ("compute", "averaging", "evaluation", "handoff", "bubble")]
            assert sum(parts) == pytest.approx(1.0, abs=1e-3)
    assert '"kind":"time"' in (finished / "r/metrics.jsonl").read_text()


def test_tensors_stay_within_a_tenth_of_the_plan_at_the_largest_window(finished: Path) -> None:
    plan = load_plan(finished / "plan.yaml")
    spans, work = SpanCosts(plan.costs, plan.workload), plan.workload
    stages = iter(json.loads((finished / "result.json").read_text())["stages"])
    for cluster, prediction in zip(plan.clusters, plan.predicted.clusters, strict=True):
        for index, (stage, predicted) in enumerate(zip(cluster.stages, prediction.stages, strict=True)):
            memory = next(stages)["memory"]
            assert memory["window"] >= cluster.window
            assert memory["planned_bytes"] >= predicted.memory_bytes - work.process_bytes
            if memory["window"] == cluster.window:
                assert memory["planned_bytes"] == predicted.memory_bytes - work.process_bytes
            place = index, len(cluster.stages)  # the window may have been tuned up to the largest
            whole = spans.stage_memory_bytes(*stage.units, place, work.largest_window) - work.process_bytes
            node = plan.fleet.node(stage.node)
            split = spans.room_to_split(*stage.units, place, work.largest_window, node.memory_bytes) > 0
            planned = whole + (spans.split_bytes(*stage.units) if split else 0)
            assert memory["tensor_bytes"] == sum(memory["parts"].values()) <= 1.1 * planned
            assert memory["tensor_bytes"] >= 0.6 * whole  # all parts were seen


def test_a_stages_process_is_no_larger_than_planned(finished: Path) -> None:
    lines = [json.loads(line) for line in (finished / "r/metrics.jsonl").read_text().splitlines()]
    assert max(line["process_bytes"] for line in lines if line["kind"] == "stage") <= PROCESS_BYTES


def test_a_timeline_holds_every_computation_of_every_stage(finished: Path) -> None:
    result = json.loads((finished / "result.json").read_text())
    events = json.loads(Path(finished / result["trace_path"]).read_text())["traceEvents"]
    rows = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert [row.split()[0] for row in rows.values()] == ["c0.s0", "c0.s1", "c1.s0", "c1.s1"]
    drawn = [event for event in events if event["ph"] == "X"]
    updates = [event for event in drawn if event["name"].startswith("update ")]
    assert len(updates) == 2 * result["updates"]  # each of a cluster's two stages makes its own
    forwards, backwards = ([e for e in drawn if e["name"].startswith(name)] for name in ("forward ", "backward "))
    assert len(forwards) == len(backwards) == 3 * len(updates)
    ends = {(event["pid"], event["name"]): event["ts"] + event["dur"] for event in forwards}
    for event in forwards:  # one machine, one clock: no stage begins before the one ahead of it has ended
        if rows[event["pid"]].startswith(("c0.s1", "c1.s1")):
            assert event["ts"] >= ends[event["pid"] - 1, event["name"]] - 1.0
    rounds = {event["name"] for event in drawn if event["cat"] == "averaging"}
    assert {f"round {n} {what}" for n in range(1, result["rounds"] + 1) for what in ("in flight", "finished")} <= rounds
    assert sum(event["ph"] == "s" for event in events) == len(forwards) / 2  # an arrow for each micro-batch


def test_the_weights_load_into_the_unmodified_model_and_give_the_reported_loss(finished: Path) -> None:
    result = json.loads((finished / "result.json").read_text())
    model = tiny.gpt(layers=3, width=16)
    model.load_state_dict(load_file(finished / "r/weights.safetensors"), strict=True)
    inputs, targets = tiny.words().held_out.tensors
    with torch.no_grad():
        output = model.eval()(inputs)
    loss = functional.cross_entropy(output.flatten(0, -2), targets.flatten()).item()
    assert result["held_out_loss"] == pytest.approx(loss, rel=1e-4)
    assert result["metrics"]["accuracy"] == pytest.approx((output.argmax(-1) == targets).float().mean().item())


def test_the_weights_evaluated_afterwards_give_the_runs_own_numbers(finished: Path) -> None:
    result = json.loads((finished / "result.json").read_text())
    done = ravnest(finished, "evaluate", "r", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["loss"] == pytest.approx(result["held_out_loss"], rel=1e-6)
    assert found["metrics"] == result["metrics"]
    assert found["baselines"] == result["baselines"]
    assert found["weights"] == "r/weights.safetensors"


def test_a_finished_run_has_nothing_to_resume(finished: Path) -> None:
    again = ravnest(finished, "run", "--out", "r", "--resume")
    assert again.returncode == 2
    assert "nothing is left to do" in again.stderr


def test_the_weights_exported_load_into_the_unmodified_model(finished: Path, tmp_path: Path) -> None:
    target = tmp_path / "new/mine.safetensors"
    done = ravnest(finished, "export", "r", "--weights", str(target), "--dtype", "bfloat16", "--part-gb", "0.00001")
    assert done.returncode == 0, done.stderr
    assert f"Wrote {target}.index.json" in done.stdout
    parts = [load_file(path) for path in sorted(target.parent.glob("*.safetensors"))]
    assert len(parts) > 1
    written = {name: tensor for part in parts for name, tensor in part.items()}
    tiny.gpt(layers=3, width=16).bfloat16().load_state_dict(written, strict=True)
    before = load_file(finished / "r/weights.safetensors")
    assert all(torch.equal(tensor, before[name].bfloat16()) for name, tensor in written.items())
    again = ravnest(finished, "export", "r", "--weights", str(target))
    assert again.returncode == 2
    assert "--force replaces it" in again.stderr


BAD_INPUT: dict[str, tuple[Callable[[Path], object], list[str], str]] = {
    "no such plan": (lambda folder: None, ["run", "none.yaml"], "none.yaml"),
    "a plan that is no plan": (
        lambda folder: (folder / "plan.yaml").write_text("version: 1\n"),
        ["run"],
        "plan.yaml: clusters",
    ),
    "a job with an unknown key": (
        lambda folder: (folder / "job.yaml").open("a").write("micro_bach: 4\n"),
        ["plan", "nodes.yaml"],
        "micro_bach",
    ),
    "a node with a negative rate": (
        lambda folder: (folder / "nodes.yaml").write_text((folder / "nodes.yaml").read_text().replace("400", "-1", 1)),
        ["plan", "nodes.yaml"],
        "nodes[0].up_mbps",
    ),
    "machines too small for the model": (
        lambda folder: (folder / "nodes.yaml").write_text(
            (folder / "nodes.yaml").read_text().replace("memory_gb: 4", "memory_gb: 0.01")
        ),
        ["plan", "nodes.yaml"],
        "memory",
    ),
    "an output folder that is in use": (lambda folder: None, ["run", "--out", "."], "which is no run's"),
    "an address that is none": (lambda folder: None, ["run", "--address", "nonsense"], "--address"),
    "an address where nobody listens": (lambda folder: None, ["run", "--address", "127.0.0.1:1"], "--address"),
    "a job that has gone": (
        lambda folder: (folder / "plan.yaml").write_text(
            re.sub(r"(?m)^job_file: .*", "job_file: /gone/job.yaml", (folder / "plan.yaml").read_text())
        ),
        ["run"],
        "plan.yaml: job_file",
    ),
    "an evaluation of what is no run": (lambda folder: None, ["evaluate", "none"], "none: no run is here"),
    "an evaluation before the first checkpoint": (lambda folder: None, ["evaluate", "."], "there are no weights"),
    "nothing to resume": (lambda folder: None, ["run", "--resume"], "resume"),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_one_clear_line_and_exit_code_2(case: str, finished: Path, tmp_path: Path) -> None:
    spoil, arguments, expected = BAD_INPUT[case]
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True, ignore=lambda _, names: {"r"} & set(names))
    spoil(tmp_path)
    done = ravnest(tmp_path, *arguments)
    assert done.returncode == 2, done.stderr
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
    assert any(line.startswith("ravnest: error:") and expected in line for line in done.stderr.splitlines())
