"""Profiles the lab, plans and trains with what was measured, and takes a machine away: what the parts are made of."""

import json
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster_planner import Fleet, load_fleet
from experiments.harness.report import ROOT
from experiments.machines.cluster import LabCluster
from experiments.machines.site import MACHINES, Site

JOB = ROOT / "examples" / "digits"
SAMPLES = 3000
PROFILE_S, PLAN_S, DOCTOR_S, RUN_S = 420.0, 180.0, 240.0, 300.0


@dataclass(frozen=True)
class Story:
    """What each command came to."""

    site: Site
    fleet: Fleet
    profile: dict[str, Any]
    sound: dict[str, Any]
    """`doctor --json` before anything was cut."""
    sound_code: int
    run: dict[str, Any]
    """`run --json`, or `error`."""
    cut: str
    sick: dict[str, Any]
    """`doctor --json` when `cut` was off the net."""
    sick_code: int


def tell(program: Path, *, quick: bool) -> Story:
    """Takes some five minutes. Raises RuntimeError where a command fails that must not."""
    site = Site(MACHINES[1:] if quick else MACHINES)
    with tempfile.TemporaryDirectory(prefix="rjob-") as name:
        folder = Path(name)
        copy_job(folder, SAMPLES)
        with LabCluster(program, site, hidden=folder) as cluster:
            at = ["--address", cluster.address]
            seconds = "2" if quick else "4"
            made = cluster.ravnest(
                folder, "profile", *at, "--job", "job.yaml", "--seconds", seconds, "--json", deadline_s=PROFILE_S
            )
            profile = _document(made.stdout, made.stderr)
            fleet = load_fleet(folder / "nodes.yaml")
            planned = cluster.ravnest(folder, "plan", "nodes.yaml", deadline_s=PLAN_S)
            if planned.returncode:
                raise RuntimeError(f"ravnest plan: {planned.stderr[-600:]}")
            sound = cluster.ravnest(folder, "doctor", "plan.yaml", *at, "--json", deadline_s=DOCTOR_S)
            ran = cluster.ravnest(folder, "run", *at, "--out", "r", "--json", deadline_s=RUN_S)
            run = {"error": ran.stderr[-600:]} if ran.returncode else _document(ran.stdout, ran.stderr)
            victim = site.names[-1]  # never the head, without which there is no cluster to ask
            cluster.cut(victim)
            sick = cluster.ravnest(folder, "doctor", "nodes.yaml", *at, "--json", deadline_s=DOCTOR_S)
        return Story(
            site,
            fleet,
            profile,
            _document(sound.stdout, sound.stderr),
            sound.returncode,
            run,
            victim,
            _document(sick.stdout, sick.stderr),
            sick.returncode,
        )


def copy_job(folder: Path, samples: int) -> None:
    """An example that ends after so many samples; its own nodes.yaml stays behind."""
    shutil.copytree(JOB, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("nodes.yaml", "__pycache__"))
    job = folder / "job.yaml"
    shorter, count = re.subn(r"(?m)^stop:.*$", f"stop: {{samples: {samples}}}", job.read_text(encoding="utf-8"))
    if count != 1:
        raise RuntimeError(f"{JOB}/job.yaml has no line of its own for `stop`")
    job.write_text(shorter, encoding="utf-8")


def _document(output: str, complaints: str) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(output)
    except json.JSONDecodeError:
        raise RuntimeError(f"no document came: {complaints[-600:]}") from None
    return document
