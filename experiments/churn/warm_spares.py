"""A warm spare beside a cold one: seconds from the death of a stage to its cluster's first update, on 5 Mbit/s links.

Two clusters of two stages train 4.7 M parameters, rehearsed: links and machines are imitated. After a committed round
the process of c1.s1 is killed. Once a spare shadows it; once nobody does, and its successor is sent the anchor.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from cluster_planner import Link, Plan, Spare, save_plan, validate
from experiments.harness.paced_plan import equal_stages
from experiments.harness.report import ROOT, Claim, Part, Table
from ravnest.driver.ray.stage_host import PROGRAM
from ravnest.job.config import load_job
from ravnest.job.materials import capture_job, load_data
from ring_allreduce.transport import LinkShape

MOST_S = 15.0
LINK = LinkShape(5e6 / 8, 0.01)
STAGE, SPARE = "c1.s1", "spare"
BEGINS_S, RECOVERS_S = 420.0, 300.0
JOB = {
    "model": {"factory": "experiments.churn.wide_layers:stack"},
    "data": {"factory": "experiments.churn.wide_layers:noise"},
    "loss": "mse",
    "micro_batch": 4,
    "update_every": 4,
    "average_every": 640,
    "optimizer": {"name": "adamw", "lr": 1e-3},
    "stop": {"minutes": 60},
    "seed": 0,
}

Record = dict[str, Any]


def measure(*, quick: bool) -> Part:
    """Kill a stage in two runs."""
    found = {how: _killed(how == "warm") for how in (("warm",) if quick else ("warm", "cold"))}
    warm = found["warm"]["first update, s"]
    rows = [
        (key, *(each.get(key) for each in found.values()))
        for key in ("called lost, s", "trains, s", "first update, s", "state from", "started with")
    ]
    return Part(
        name="warm",
        title="A warm spare takes the place of a stage",
        claims=[
            Claim(
                "warm",
                "seconds from the kill to the first update of its cluster",
                f"at most {MOST_S:g}",
                f"{warm:.1f}" + (f", cold {found['cold']['first update, s']:.1f}" if "cold" in found else ""),
                None if quick else warm <= MOST_S,
            )
        ],
        tables=[Table("Seconds after the kill of c1.s1", ("", *found), rows)],
        notes=[" ".join((__doc__ or "").split("\n\n")[1].split())],
    )


def _plan(folder: Path, *, warm: bool) -> Path:
    job_file = folder / "job.yaml"
    job_file.write_text(json.dumps(JOB))  # which is YAML, too
    job = load_job(job_file)
    captured = capture_job(job, job_file, load_data(job, job_file))
    made = equal_stages(job, job_file, captured, clusters=2, stages=2, forward_s=0.1, link=LINK, window=6)
    plan = _with_spare(made, warm=warm)
    path = folder / "plan.yaml"
    save_plan(plan, path)
    return path


def _with_spare(plan: Plan, *, warm: bool) -> Plan:
    names = plan.fleet.names
    node = replace(plan.fleet.nodes[0], name=SPARE)
    links = tuple(Link(name, SPARE, LINK.latency_s, LINK.bytes_per_s) for name in names)
    fleet = replace(plan.fleet, nodes=(*plan.fleet.nodes, node), links=(*plan.fleet.links, *links))
    spare = Spare(SPARE, "it is kept for losses", (("c1", 1),) if warm else ())
    new = replace(plan, fleet=fleet, spares=(spare,))
    validate(new)
    return new


def _killed(warm: bool) -> Record:
    with tempfile.TemporaryDirectory(prefix="warm") as where:
        folder = Path(where)
        plan = _plan(folder, warm=warm)
        command = [sys.executable, "-m", "ravnest", "rehearse", str(plan), "--whole", "--out", str(folder / "r")]
        with (folder / "said").open("w+", encoding="utf-8") as said:
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            run = subprocess.Popen(command, cwd=folder, env=environment, stdout=said, stderr=subprocess.STDOUT)
            try:
                return _measured(run, folder / "r" / "metrics.jsonl", warm=warm)
            except TimeoutError as error:
                said.seek(0)
                raise RuntimeError(f"{error}; the run said:\n{said.read()[-4000:]}") from error
            finally:
                run.terminate()
                try:
                    run.wait(60.0)
                except subprocess.TimeoutExpired:
                    run.kill()


def _measured(run: "subprocess.Popen[bytes] | subprocess.Popen[str]", metrics: Path, *, warm: bool) -> Record:
    def until(what: str, wanted: Any, seconds: float) -> list[Record]:
        deadline_s = time.monotonic() + seconds
        while time.monotonic() < deadline_s and run.poll() is None:
            seen = [json.loads(line) for line in _lines(metrics)]
            if wanted(seen):
                return seen
            time.sleep(0.05)
        raise TimeoutError(f"{what} did not come about within {seconds:.0f} s")

    def rounds(seen: list[Record]) -> int:
        return sum(one["kind"] == "round" for one in seen)

    seen = until("the warm spare", lambda seen: not warm or any(one["kind"] == "warm" for one in seen), BEGINS_S)
    before = rounds(seen)
    seen = until("two more rounds", lambda seen: rounds(seen) >= before + 2, BEGINS_S)
    family = psutil.Process(run.pid).children(recursive=True)
    (victim,) = [each for each in family if each.cmdline()[1:4] == ["-m", PROGRAM, STAGE]]
    known = len(seen)
    victim.kill()
    killed_s = time.monotonic()
    after: Record = {}

    def watched(seen: list[Record]) -> bool:
        for one in seen[known:]:
            kind = one["kind"]
            passed_s = round(time.monotonic() - killed_s, 1)
            if kind == "lost":
                after.setdefault("called lost, s", passed_s)
            elif kind == "replanned":
                after.setdefault("started with", one["how"])
            elif kind == "restored" and one["stage"] == STAGE:
                after.setdefault("state from", ", ".join(one["sources"]))
            elif kind == "replaced":
                after.setdefault("trains, s", passed_s)
            elif kind == "update" and one["cluster"] == "c1" and "trains, s" in after:
                after.setdefault("first update, s", passed_s)
        return "first update, s" in after

    until("the first update", watched, RECOVERS_S)
    return after


def _lines(path: Path) -> list[str]:
    """The whole lines of a file that is being written."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return text[: text.rfind("\n") + 1].splitlines()
