"""Goodput of twenty nodes of which one loses its process every minute, rehearsed: real processes, imitated machines.

Five clusters of four stages train on this machine, each stage in a process of its own, with the links and the speeds
of the machines imitated. After three minutes the process of another stage is killed each minute, by `ravnest rehearse
--scenario`. Ready processes wait beside all stages. Goodput is the samples/s that are in the anchor at the end of the
minutes with faults, of those that the same run made in the minutes before them.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from cluster_planner import Plan, save_plan
from experiments.harness.paced_plan import equal_stages
from experiments.harness.report import ROOT, Claim, Part, Table
from ravnest.driver.observe.metrics_file import read_metrics
from ravnest.job.config import load_job
from ravnest.job.materials import capture_job, load_data
from ring_allreduce.transport import LinkShape

TARGET = 0.90
CLUSTERS, STAGES, SEED = 5, 4, 1
EVERY_S, FREE_S, FAULTS = 60.0, 180.0, 12
WARMS_UP_S = 30.0
"""So much of the beginning does not count: pipelines fill, and ready processes are made."""
STARTS_S = 600.0
LINK = LinkShape(100e6 / 8, 0.005)
JOB = {
    "model": {"factory": "experiments.churn.wide_layers:stack", "args": {"width": 64}},
    "data": {"factory": "experiments.churn.wide_layers:noise", "args": {"width": 64}},
    "loss": "mse",
    "micro_batch": 4,
    "update_every": 4,
    "average_every": 160,
    "evaluate_every": 1600,
    "ready_processes": "always",
    "optimizer": {"name": "adamw", "lr": 1e-3},
    "stop": {"minutes": 600},
    "seed": 0,
}


def measure(*, quick: bool) -> Part:
    """Fifteen minutes of one rehearsal, or with `quick` two clusters and one fault."""
    clusters, faults, free_s = (2, 1, 60.0) if quick else (CLUSTERS, FAULTS, FREE_S)
    seconds = free_s + EVERY_S * faults
    with tempfile.TemporaryDirectory(prefix="rehearsed") as where:
        folder = Path(where)
        plan = _plan(folder, clusters)
        nodes = [stage.node for cluster in plan.clusters for stage in cluster.stages]
        chance = random.Random(f"churn/{SEED}")
        kills = [{"node": chance.choice(nodes), "at_s": free_s + EVERY_S * number} for number in range(faults)]
        (folder / "scenario.yaml").write_text(json.dumps({"kills": kills}))  # which is YAML, too
        _rehearse(folder, seconds)
        told = read_metrics(folder / "r" / "metrics.jsonl")
        summary = json.loads((folder / "r" / "summary.json").read_text())
    before, made = _samples_at(told, WARMS_UP_S), _samples_at(told, free_s)
    free = (made - before) / (free_s - WARMS_UP_S)
    disturbed = (int(summary["samples"]) - made) / (float(summary["seconds"]) - free_s)
    lost = [one for one in told if one["kind"] == "lost"]
    again = sorted(float(str(one["seconds"])) for one in told if one["kind"] == "replaced")
    share = disturbed / free
    return Part(
        name="rehearsed",
        title="One fault a minute, rehearsed",
        claims=[
            Claim(
                "rehearsed",
                f"goodput of {len(nodes)} nodes with one fault a minute, of the same without",
                f"at least {TARGET:.0%}",
                f"{share:.1%}",
                None if quick else share >= TARGET,
            )
        ],
        tables=[
            Table(
                f"{len(nodes)} stages of this machine, {seconds / 60:g} minutes",
                ("", "value"),
                [
                    ("faults", faults),
                    ("without faults, samples/s", round(free, 2)),
                    ("with faults, samples/s in the anchor at the end", round(disturbed, 2)),
                    ("clusters lost", len(lost)),
                    ("samples lost", sum(int(str(one["samples"])) for one in lost)),
                    ("seconds to train again, median", round(median(again), 1) if again else None),
                    ("seconds to train again, the longest", round(again[-1], 1) if again else None),
                    ("no cluster left", sum(one["kind"] == "restarted" for one in told)),
                ],
            )
        ],
        notes=[" ".join((__doc__ or "").split("\n\n")[1].split())],
    )


def _plan(folder: Path, clusters: int) -> Plan:
    job_file = folder / "job.yaml"
    job_file.write_text(json.dumps(JOB))
    job = load_job(job_file)
    captured = capture_job(job, job_file, load_data(job, job_file))
    plan = equal_stages(
        job, job_file, captured, clusters=clusters, stages=STAGES, forward_s=0.25, link=LINK, window=2 * STAGES
    )
    save_plan(plan, folder / "plan.yaml")
    return plan


def _rehearse(folder: Path, seconds: float) -> None:
    words = ["rehearse", "plan.yaml", "--minutes", f"{seconds / 60}", "--scenario", "scenario.yaml", "--out", "r"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [sys.executable, "-m", "ravnest", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=seconds + STARTS_S,
    )
    if ended.returncode:
        raise RuntimeError(f"the rehearsal ended with {ended.returncode}:\n{ended.stderr[-4000:]}")


def _samples_at(told: list[dict[str, Any]], at_s: float) -> int:
    """The samples that the fleet had made when it had trained for so long."""
    return next(int(one["samples"]) for one in told if one["kind"] == "progress" and one["elapsed_s"] >= at_s)
