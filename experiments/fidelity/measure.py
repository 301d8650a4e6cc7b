"""Runs each plan three ways: simulated in this process, rehearsed by `ravnest rehearse`, real on Ray in wanlab.

Decides the lengths and the deadlines. A run that fails is a row that says so; the others go on.
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cluster_planner import Plan, save_plan
from experiments.fidelity.achieved import Achieved, of_rehearsal, of_simulation
from experiments.fidelity.judging import Came, Row, part
from experiments.fidelity.plans import job_folder, plan_of
from experiments.fidelity.programs import answer
from experiments.fidelity.ray_in_lab import RayInLab
from experiments.fidelity.sites import Site
from experiments.harness.report import Part
from ravnest.simulator import simulate

CLI = "from ravnest.cli.main import main; main()"
SECONDS, QUICK_SECONDS = 30.0, 10.0
"""Of training, fill included: the steady state begins with the first round's checkpoint."""
SIMULATED_S = 120.0
DEADLINE_S = 240.0


def run(sites: Sequence[Site], *, quick: bool, wanlab: Path | None, why_not_real: str) -> Part:
    """Measure all `sites`, and judge. `wanlab`: None leaves the real runs out, `why_not_real` says why."""
    seconds = QUICK_SECONDS if quick else SECONDS
    with TemporaryDirectory(prefix="fidelity-") as name:
        folder = Path(name)
        job_file = job_folder(folder)
        plans = {site.name: _plan(site, job_file) for site in sites}
        near: dict[str, tuple[Came, Came]] = {}
        for site in sites:
            plan, path = plans[site.name], folder / f"{site.name}.yaml"
            near[site.name] = (
                _came("simulated", site, lambda plan=plan: of_simulation(simulate(plan, seconds=SIMULATED_S))),
                _came("rehearsed", site, lambda path=path: rehearse(path, seconds)),
            )
        real: dict[str, Came] = {} if wanlab is None else _real(sites, wanlab, folder, seconds)
    rows = [
        Row(
            site.name,
            site.words,
            plans[site.name].predicted.samples_per_s,
            plans[site.name].predicted.bottleneck,
            *near[site.name],
            real.get(site.name),
        )
        for site in sites
    ]
    return part(rows, why_not_real, _notes(seconds))


def _plan(site: Site, job_file: Path) -> Plan:
    plan = plan_of(site, job_file)
    save_plan(plan, job_file.with_name(f"{site.name}.yaml"))
    return plan


def rehearse(plan: Path, seconds: float) -> Achieved:
    """Raises RuntimeError where the command fails or is late."""
    return of_rehearsal(rehearsal_of(plan, seconds))


def rehearsal_of(plan: Path, seconds: float, speed: float = 1.0) -> Mapping[str, Any]:
    """What `ravnest rehearse --json` says of a plan file. Raises RuntimeError where the command fails or is late.

    `seconds` are of this machine's clock; the machines are imitated at `speed` times their own.
    """
    out = plan.with_name(f"{plan.stem}-rehearsed")
    command = [sys.executable, "-c", CLI, "rehearse", str(plan), "--minutes", str(seconds / 60), "--out", str(out)]
    document = answer(
        [*command, "--speed", str(speed), "--json"], {}, deadline_s=seconds + DEADLINE_S, log=out.with_suffix(".log")
    )
    rehearsal: Mapping[str, Any] = document["rehearsal"]
    return rehearsal


def _real(sites: Sequence[Site], wanlab: Path, folder: Path, seconds: float) -> dict[str, Came]:
    """All plans on one Ray cluster, of as many nodes as the largest needs."""
    found: dict[str, Came] = {}
    try:
        with RayInLab(wanlab, max(len(site.nodes) for site in sites)) as ray:
            for site in sites:
                path = folder / f"{site.name}.yaml"
                found[site.name] = _came("real", site, lambda site=site, path=path: _on(ray, site, path, seconds))
    except (RuntimeError, OSError) as error:
        for site in sites:
            found.setdefault(site.name, f"{type(error).__name__}: {error}")
    return found


def _on(ray: RayInLab, site: Site, plan: Path, seconds: float) -> Achieved:
    ray.shape(site)
    document = ray.run(plan, seconds=seconds, deadline_s=DEADLINE_S, out=plan.with_name(f"{plan.stem}-real"))
    return of_rehearsal(document["rehearsal"])


def _came(kind: str, site: Site, work: Callable[[], Achieved]) -> Came:
    """What it came to, or why it failed; and a line for whoever waits."""
    began_s = time.monotonic()
    came: Came
    try:
        came = work()
        said = f"{came.samples_per_s:.1f} samples/s"
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this row's, and is shown there
        came = f"{type(error).__name__}: {' '.join(str(error).split())}"
        said = came
    print(f"{site.name} {kind}: {said} ({time.monotonic() - began_s:.0f} s)", file=sys.stderr, flush=True)
    return came


def _notes(seconds: float) -> list[str]:
    return [
        f"Each run trains for {seconds:.0f} s; figures are of the steady state, from the first round's checkpoint to "
        f"the drain, by the stages' own clocks. A simulation goes on for {SIMULATED_S:.0f} virtual seconds. A "
        "rehearsal is `ravnest rehearse` as a user starts it: processors and links imitated. A real run is on a Ray "
        "cluster of one "
        "node for each namespace of wanlab, with the kernel's TCP on shaped links; each stage's computing is padded to "
        "its node's speed there too, since all share this machine's processor. Ray's head and the run's driver have a "
        "namespace of their own.",
        "Left out on purpose: the planner's search (sites state their clusters and cuts), rates of single links, which "
        "wanlab does not have, and split backwards.",
    ]
