"""Cuts machines off in the middle of a run: how long their stages live on, and whether Ray there is usable again.

First a run of two clusters, one of which is cut off: one of its machines starts Ray in the loop of docs/operating.md,
the other once. Then, on the machine that has come back by itself, a run of one cluster, which is cut in two.
"""

import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from experiments.harness.report import Claim, Part, Table
from experiments.machines.cluster import LabCluster
from experiments.machines.measure import PLAN_S, RUN_S, copy_job
from experiments.machines.site import MACHINES, Site
from ravnest.driver.observe.metrics_file import read_metrics
from ravnest.driver.ray.stage_host import PROGRAM

TITLE = "A link that is cut in the middle of a run"
HOME, FAR = ("fra-desktop", "fra-laptop"), ("iad-desktop", "iad-mini")
LOOPED, ONCE = FAR
ENDLESS = 50_000_000
STAGES_WITHIN_S, BACK_WITHIN_S = 60.0, 120.0
WATCH_S = 80.0
"""How long a cut lasts at least: longer than any deadline of a stage."""


@dataclass(frozen=True)
class Cuts:
    """Seconds are None for what did not happen while it was watched."""

    stages_s: Mapping[str, float | None]
    """Machine → seconds from the cut to the end of its last stage process, with a cluster of its own left at home."""
    went_on: bool
    """Whether the run made updates after that."""
    ray_lived: Collection[str]
    """The machines whose Ray node was still there after a cut of WATCH_S."""
    back_s: Mapping[str, float | None]
    """Machine → seconds from the return of the link until the head calls its Ray alive, after its old one has ended."""
    trains_again: bool
    one_cluster_s: float | None
    """As stages_s, for a run of one cluster over a machine at home and LOOPED."""


def tell(program: Path) -> Cuts:
    """Takes some eight minutes. Raises RuntimeError where a command fails that must not."""
    with tempfile.TemporaryDirectory(prefix="rcut-") as name:
        folder = Path(name)
        copy_job(folder, ENDLESS)
        with LabCluster(program, Site(MACHINES), hidden=folder, again=[LOOPED]) as cluster:
            _plan(cluster, folder, {"home": HOME, "far": FAR})
            first = _train(cluster, folder, "first")
            stages_s = _cut(cluster, FAR)
            made = _updates(folder, "first")
            lived = [each for each in FAR if _has(cluster, each, "raylet/raylet")]
            went_on = first.poll() is None and _within(20.0, lambda: _updates(folder, "first") > made) is not None
            back_s = _heal(cluster, lived)
            _end(first)
            _plan(cluster, folder, {"both": (HOME[0], LOOPED)})
            try:
                second = _train(cluster, folder, "second")
            except RuntimeError:
                return Cuts(stages_s, went_on, lived, back_s, trains_again=False, one_cluster_s=None)
            one_cluster_s = _cut(cluster, [LOOPED])[LOOPED]
            _end(second)
    return Cuts(stages_s, went_on, lived, back_s, trains_again=True, one_cluster_s=one_cluster_s)


def judge(found: Cuts) -> Part:
    """What a cut link leaves on the machines behind it, and how these come back."""
    stages = {**found.stages_s, f"{LOOPED}, of one cluster": found.one_cluster_s}
    back = found.back_s[LOOPED]
    ended = all(each is not None and each <= STAGES_WITHIN_S for each in stages.values())
    measured = "; ".join(f"{where}: {_told(each)}" for where, each in stages.items())
    return Part(
        name="cut",
        title=TITLE,
        claims=[
            Claim("stages", "stages behind a cut end by themselves", f"{STAGES_WITHIN_S:.0f} s", measured, ended),
            Claim(
                "goes on",
                "the run goes on with the cluster that is left",
                "updates",
                "updates" if found.went_on else "none",
                found.went_on,
            ),
            Claim(
                "back",
                "Ray that is started in a loop is back by itself once the link is, and the next run trains there",
                f"{BACK_WITHIN_S:.0f} s",
                f"{_told(back)}; {'trains' if found.trains_again else 'does not train'}",
                back is not None and back <= BACK_WITHIN_S and found.trains_again,
            ),
        ],
        tables=[
            Table(
                "Ray on the machines that were cut off",
                ("machine", "Ray is started", f"lived through a cut of {WATCH_S:.0f} s", "back after the link"),
                [
                    [each, how, "yes" if each in found.ray_lived else "no", _told(found.back_s[each])]
                    for each, how in ((LOOPED, "in a loop"), (ONCE, "once"))
                ],
            )
        ],
        notes=["All machines share two cores, so that starts take longer than on machines of their own."],
    )


def _plan(cluster: LabCluster, folder: Path, clusters: Mapping[str, Collection[str]]) -> None:
    nodes = [
        {"name": node, "gflops": 5, "memory_gb": 4, "up_mbps": 20, "down_mbps": 50, "region": "lab"}
        for names in clusters.values()
        for node in names
    ]
    pins = [{"node": node, "cluster": name} for name, names in clusters.items() for node in names]
    between = {"between": ["lab", "lab"], "latency_ms": 46, "mbps": 20}
    document = {"nodes": nodes, "regions": [between], "constraints": {"pin": pins}}
    (folder / "nodes.yaml").write_text(json.dumps(document), encoding="utf-8")  # YAML reads JSON
    planned = cluster.ravnest(folder, "plan", "nodes.yaml", deadline_s=PLAN_S)
    if planned.returncode:
        raise RuntimeError(f"ravnest plan: {planned.stderr[-600:]}")


def _train(cluster: LabCluster, folder: Path, out: str) -> "subprocess.Popen[bytes]":
    """Begin a run, and wait until it has made updates. Raises RuntimeError where it does not come to that."""
    log = folder / f"{out}.log"
    running = cluster.begin(folder, "run", "--address", cluster.address, "--out", out, log=log)
    _within(RUN_S, lambda: running.poll() is not None or _updates(folder, out) > 20)
    if running.poll() is not None or _updates(folder, out) <= 20:
        raise RuntimeError(f"the run {out} does not train: {log.read_text(errors='replace')[-600:]}")
    return running


def _updates(folder: Path, out: str) -> int:
    metrics = folder / out / "metrics.jsonl"
    return sum(row.get("kind") == "update" for row in read_metrics(metrics)) if metrics.exists() else 0


def _cut(cluster: LabCluster, machines: Collection[str]) -> dict[str, float | None]:
    """Cut these off for WATCH_S, and say when the last stage ended on each."""
    for each in machines:
        cluster.cut(each)
    cut_s = time.monotonic()
    ended: dict[str, float | None] = dict.fromkeys(machines)
    while (passed_s := time.monotonic() - cut_s) < WATCH_S:
        for each in machines:
            if ended[each] is None and not _has(cluster, each, f"-m {PROGRAM}"):
                ended[each] = passed_s
        time.sleep(0.5)
    return ended


def _heal(cluster: LabCluster, lived: Collection[str]) -> dict[str, float | None]:
    for each in FAR:
        cluster.heal(each)
    healed_s = time.monotonic()
    back: dict[str, float | None] = dict.fromkeys(FAR)
    while (passed_s := time.monotonic() - healed_s) < BACK_WITHIN_S:
        for each in cluster.alive() & {name for name, seconds in back.items() if seconds is None}:
            back[each] = passed_s
        time.sleep(1.0)
    return back


def _has(cluster: LabCluster, machine: str, words: str) -> bool:
    return any(words in line for line in cluster.processes(machine))


def _within(seconds: float, holds: Callable[[], bool]) -> float | None:
    """How long it took until that held, or None."""
    began_s = time.monotonic()
    while (passed_s := time.monotonic() - began_s) < seconds:
        if holds():
            return passed_s
        time.sleep(0.5)
    return None


def _end(running: "subprocess.Popen[bytes]") -> None:
    running.terminate()
    try:
        running.wait(60.0)
    except subprocess.TimeoutExpired:
        running.kill()


def _told(seconds: float | None) -> str:
    return "not seen" if seconds is None else f"{seconds:.0f} s"
