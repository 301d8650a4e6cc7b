"""A run as a user starts it, through Ray on this machine: seconds to the first update, and memory of each stage.

From the start of `ravnest run` until metrics.jsonl has the first update. A process's memory is looked at then, less the
weights it holds: resident (RSS), and with pages that several processes share divided among them (PSS), as the figures
that this is compared with were taken. Tensors are those that the run itself counts, at their peak, beside the plan.
"""

import contextlib
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from cluster_planner import Fleet, Node, load_plan, make_plan, save_plan
from experiments.harness.report import ROOT, Cell, Claim, Part, Table
from ravnest.driver.ray.stage_host import PROGRAM
from ravnest.job.config import load_job
from ravnest.job.materials import capture_job, load_data
from ravnest.planning.workload import workload

JOB_FILE = ROOT / "examples" / "home" / "job.yaml"
SECONDS = {3: 20.0, 6: 30.0}
PROCESS_MIB, WITHIN = 300, 0.10
SAMPLES = 2000
CLI = "from ravnest.cli.main import main; main()"
LIMIT_S = 300.0
MIB = 1 << 20


@dataclass(frozen=True)
class StageMemoryRow:
    """One stage, in bytes."""

    stage: str
    resident: int
    tensors: int
    planned: int
    weights: int


@dataclass(frozen=True)
class Launch:
    """One run."""

    actors: int
    first_update_s: float
    proportional: list[int]
    """PSS of the stages' processes, in no order."""
    stages: list[StageMemoryRow]
    model: int
    """Bytes of all weights."""


def launch(actors: int, folder: Path) -> Launch:
    """Plan for so many equal nodes, and run."""
    job = load_job(JOB_FILE)
    job = job.model_copy(update={"stop": job.stop.model_copy(update={"samples": SAMPLES}), "sample": None})
    captured = capture_job(job, JOB_FILE, load_data(job, JOB_FILE))
    nodes = tuple(
        Node(name=f"n{index}", flops_per_s=2e10, memory_bytes=4 * 10**9, up_bytes_per_s=1e8, down_bytes_per_s=1e8)
        for index in range(actors)
    )
    plan = make_plan(
        Fleet(nodes, (), ()),
        captured.costs,
        workload(job),
        job=job.model_dump(mode="json"),
        job_file=str(JOB_FILE),
        min_stages=min(2, actors),
    )
    path, out = folder / "plan.yaml", folder / "run"
    save_plan(plan, path)
    command = [sys.executable, "-c", CLI, "run", str(path), "--out", str(out), "--json"]
    began_s = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as running:
        first_s = _first_update_s(out / "metrics.jsonl", running, began_s)
        proportional = _proportional(running.pid)
        answer, errors = running.communicate(timeout=LIMIT_S)
    if running.returncode:
        raise RuntimeError(f"ravnest run ended with {running.returncode}: {errors[-2000:]}")
    return Launch(actors, first_s, proportional, *_memory(path, out, json.loads(answer)))


def _first_update_s(metrics: Path, running: "subprocess.Popen[str]", began_s: float) -> float:
    while time.monotonic() < began_s + LIMIT_S and running.poll() is None:
        if metrics.exists() and any('"update"' in line for line in metrics.read_text(encoding="utf-8").splitlines()):
            return time.monotonic() - began_s
        time.sleep(0.05)
    raise RuntimeError(f"no update within {LIMIT_S:.0f} s: {running.stderr.read()[-2000:] if running.stderr else ''}")


def _proportional(pid: int) -> list[int]:
    """PSS of the stages' processes, which are among the descendants of `pid`, by the title that Ray gives them."""
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.cmdline()[1:3] == ["-m", PROGRAM]:
                found.append(int(process.memory_full_info().pss))
    return found


def _memory(plan_path: Path, out: Path, result: dict[str, Any]) -> tuple[list[StageMemoryRow], int]:
    """Of each stage; and the bytes of all weights."""
    plan = load_plan(plan_path)
    units = [unit.parameter_bytes for unit in plan.costs.units]
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    process = {
        f"{line['cluster']}.s{line['stage']}": line["process_bytes"] for line in lines if line["kind"] == "stage"
    }
    rows = []
    for figures in result["stages"]:
        cluster, index = figures["stage"].split(".s")
        start, stop = plan.cluster(cluster).stages[int(index)].units
        memory = figures["memory"]
        rows.append(
            StageMemoryRow(
                figures["stage"],
                process[figures["stage"]],
                memory["tensor_bytes"],
                memory["planned_bytes"],
                sum(units[start:stop]),
            )
        )
    return rows, sum(units)


def run(*, quick: bool) -> Part:
    """Measure, and judge."""
    launches = []
    for actors in (3,) if quick else (3, 6):
        with TemporaryDirectory() as folder:
            launches.append(launch(actors, Path(folder)))
    stages = [stage for each in launches for stage in each.stages]
    off = max(stages, key=lambda stage: abs(stage.tensors / stage.planned - 1))
    resident = max(stage.resident - stage.weights for stage in stages)
    proportional = max(max(each.proportional) - min(stage.weights for stage in each.stages) for each in launches)
    most = max(stage.weights / each.model for each in launches for stage in each.stages)
    claims = [
        *(
            Claim(
                f"launch {each.actors}",
                f"`ravnest run` to the first update, {each.actors} actors",
                f"<= {SECONDS[each.actors]:.0f} s",
                f"{each.first_update_s:.1f} s",
                each.first_update_s <= SECONDS[each.actors],
            )
            for each in launches
        ),
        Claim(
            "process",
            "memory of a stage's process (PSS), without its weights, at most",
            f"<= {PROCESS_MIB} MiB",
            f"{proportional / MIB:.0f} MiB (RSS: {resident / MIB:.0f} MiB)",
            proportional <= PROCESS_MIB * MIB,
        ),
        Claim(
            "tensors",
            "tensor bytes of a stage at their peak over the plan's, in each stage",
            f"within {WITHIN:.0%}",
            f"{off.tensors / off.planned - 1:+.1%} at worst ({off.stage})",
            abs(off.tensors / off.planned - 1) <= WITHIN,
        ),
        Claim("whole", "of all weights, what one node holds at most", "< 100%", f"{most:.0%}", most < 1),
    ]
    rows: list[list[Cell]] = [
        [
            each.actors,
            stage.stage,
            round(stage.resident / MIB, 1),
            round(stage.tensors / MIB, 2),
            round(stage.planned / MIB, 2),
            f"{stage.weights / each.model:.0%}",
        ]
        for each in launches
        for stage in each.stages
    ]
    columns = ["actors", "stage", "resident, MiB", "tensors, MiB", "planned, MiB", "of all weights"]
    return Part(
        "launching",
        "From the command to the first update, and memory",
        claims,
        [Table("Memory of each stage", columns, rows)],
        notes=[f"The job of examples/home, {SAMPLES} samples, Ray on this machine."],
    )
