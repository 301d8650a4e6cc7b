"""One run to which faults happen, and what becomes of it after each.

In: a session of the list, a folder with a plan, machines. Out: a record for each fault, and one for the run's end.
"""

import json
import random
import shutil
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import psutil

from experiments.churn.faulted.faulted_run import HUNG_S, Ended, FaultedRun, Hung, Record, small_disk
from experiments.churn.faulted.listed import UNDISTURBED, Fault, Session
from experiments.churn.faulted.machines import MBPS, Machines
from experiments.harness.report import ROOT

LOGS = ROOT / "runs" / "experiments" / "churn" / "faults"
"""Where what each run has said is kept."""
FREEZE_S, SLOW_S, FULL_S = 20.0, 15.0, 15.0
CUT_S = (8.0, 30.0)
_NOTICED = {
    "kill": ("lost", "restarted", "not_replaced"),
    "two": ("lost", "restarted", "not_replaced"),
    "driver": ("taken_over", "restarted", "phase"),
}
"""What a run tells of some faults, before which it has not recovered from them."""
NOTICED_S = 30.0
UPDATE_SAMPLES = 16
"""What a cluster makes in one update, as in job/job.yaml."""
AWAY_S = 2.0
"""How long a driver is away that was killed."""
CLUSTERS = ("c0", "c1")


def session_of(session: Session, folder: Path, machines: Machines, tell: Callable[[Record], None]) -> None:
    """Run one session, and tell of each fault and of the end."""
    with small_disk(folder / "disk"):
        run = FaultedRun(folder, machines)
        run.start()
        try:
            for fault in session.faults:
                record = _happens(run, fault, machines)
                record |= {"session": session.number, "clock": time.strftime("%Y-%m-%dT%H:%M:%S")}
                tell(record)
                if record["hung"] or record["over"]:
                    break
            what = {"undisturbed": True} if session is UNDISTURBED else {"end": session.number}
            tell({**what, **_outcome(run, session, folder)})
        finally:
            run.end()
            LOGS.mkdir(parents=True, exist_ok=True)
            for name in ("output.log", "disk/r/metrics.jsonl"):
                with suppress(OSError):
                    shutil.copyfile(folder / name, LOGS / f"{session.number}-{Path(name).name}")


def _happens(run: FaultedRun, fault: Fault, machines: Machines) -> Record:
    """Let one fault happen, and wait until all clusters train again."""
    chance = fault.chance()
    record: Record = asdict(fault) | {"hung": False, "over": False, "ended": None, "resumed": 0}
    began_s = time.monotonic()
    target = ""
    try:
        _moment(run, fault, chance)
        began_s = time.monotonic()
        stages = run.stages()
        target = chance.choice(sorted(stages) or ["c0.s0"])
        record["target"] = target
        _inject(run, fault.kind, target, stages, machines, chance)
        if fault.kind in _NOTICED and target in stages:
            with suppress(Hung):  # a stage that was no part of the run is missed by nobody
                run.until(lambda: bool(run.since(began_s, *_NOTICED[fault.kind])), NOTICED_S)
        _recovered(run, began_s)
    except Hung:
        record["hung"] = True
    except Ended:
        _after_end(run, record, began_s)
    lost = run.since(began_s, "lost")
    record["lost"] = [one["samples"] for one in lost]
    record["made_again"] = made_again(run.records, began_s)
    record["since_checkpoint"] = [one["samples"] for one in run.since(began_s, "restarted")]
    record["silent_s"] = [one["silent_s"] for one in lost]
    record["events"] = [one["kind"] for one in run.since(began_s, "restarted", "taken_over", "not_saved", "suspected")]
    if not record["hung"] and not record["over"] and target:
        record["seconds"] = round(_first_gradient_s(run, target.partition(".")[0], began_s), 2)
    if record["hung"]:
        record["tail"] = run.output[-1500:]
    return record


def made_again(records: Sequence[tuple[float, Record]], since_s: float) -> list[int]:
    """For each cluster that was lost since then, and replaced: the samples that it makes again, of those it had made.

    They are at most what was told as lost, since a round that was under way may count after all.
    """
    again, last, gone = list[int](), dict[str, int](), dict[str, int]()
    for at_s, one in records:
        if one["kind"] == "lost" and at_s >= since_s and one["cluster"] in last:
            gone[one["cluster"]] = last[one["cluster"]]
        elif one["kind"] == "update" and "samples" in one:
            if (before := gone.pop(one["cluster"], None)) is not None:
                again.append(max(0, before - one["update"] + 1) * UPDATE_SAMPLES)
            last[one["cluster"]] = one["update"]
        elif one["kind"] == "restarted":
            gone.clear()
    return again


def _after_end(run: FaultedRun, record: Record, began_s: float) -> None:
    """The run has ended: with the job done, or else it is resumed as its user would do."""
    if run.code == 0:
        record["over"] = True
        return
    record["ended"] = _last_line(run.output)
    try:
        run.start(resume=(run.folder / "disk/r/checkpoints/latest").exists())
        record["resumed"] = 1
        _recovered(run, began_s)
    except Hung:
        record["hung"] = True
    except Ended:
        record["over"] = True
        record["ended"] += " / " + _last_line(run.output)


def _last_line(text: str) -> str:
    said = [line for line in text.splitlines() if line.startswith("ravnest: error")]
    return said[-1][:400] if said else "\n".join(text.splitlines()[-3:])[:400]


def _moment(run: FaultedRun, fault: Fault, chance: random.Random) -> None:
    """Wait for the moment of the fault."""
    if fault.moment == "start":
        run.until(lambda: "placing stages" in run.output)
        run.until(lambda: len(run.stages()) == 4)
        _pass(run, chance.uniform(0.0, 6.0))
        return
    run.until(lambda: all(run.last_update_s(one, time.monotonic() - 3.0) for one in CLUSTERS))
    if fault.moment == "training":
        _pass(run, chance.uniform(0.0, 3.0))
    elif fault.moment == "averaging":
        seen_s = time.monotonic()
        run.until(lambda: bool(run.since(seen_s, "round")))
        _pass(run, chance.uniform(0.0, 0.1))
    elif fault.moment == "checkpoint":
        before = _checkpoints(run)
        run.until(lambda: bool(_checkpoints(run) - before))
    else:
        killed_s = time.monotonic()
        chance.choice(sorted(run.stages().items()))[1].kill()
        run.until(lambda: bool(run.since(killed_s, "lost", "restarted")))
        _pass(run, chance.uniform(0.0, 12.0))


def _checkpoints(run: FaultedRun) -> set[str]:
    folder = run.folder / "disk/r/checkpoints"
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def _pass(run: FaultedRun, seconds: float) -> None:
    until_s = time.monotonic() + seconds
    with suppress(Hung):
        run.until(lambda: time.monotonic() >= until_s, seconds + 1.0)


def _inject(
    run: FaultedRun,
    kind: str,
    target: str,
    stages: dict[str, psutil.Process],
    machines: Machines,
    chance: random.Random,
) -> None:
    node = _node(run, target)
    match kind:
        case "kill":
            _kill(stages.get(target))
        case "two":
            for one in (target, chance.choice(sorted(stages.keys() - {target}) or [target])):
                _kill(stages.get(one))
        case "freeze" if target in stages:
            with suppress(psutil.Error):
                stages[target].suspend()
                _pass(run, FREEZE_S)
                stages[target].resume()
        case "cut":
            machines.cut(node, off=True)
            try:
                _pass(run, chance.choice(CUT_S))
            finally:
                machines.cut(node, off=False)
        case "slow":
            machines.rate(node, MBPS / 100)
            try:
                _pass(run, SLOW_S)
            finally:
                machines.rate(node, MBPS)
        case "disk full":
            with suppress(OSError), (run.folder / "disk/ballast").open("wb") as file:
                while True:
                    file.write(b"\0" * 4096)
            try:
                _pass(run, FULL_S)
            finally:
                (run.folder / "disk/ballast").unlink(missing_ok=True)
        case "garbage":
            for port in machines.ports(node):
                _garbage(machines.addresses[node], port, chance)
        case "driver":
            run.kill()
            time.sleep(AWAY_S)
            run.start(resume=_can_resume(run))


def _can_resume(run: FaultedRun) -> bool:
    return (run.folder / "disk/r/driver.json").exists() or (run.folder / "disk/r/checkpoints/latest").exists()


def _kill(process: psutil.Process | None) -> None:
    if process is not None:
        with suppress(psutil.Error):
            process.kill()


def _garbage(address: str, port: int, chance: random.Random) -> None:
    """Say what nobody says: noise, the beginning of ZeroMQ's greeting and noise, a long frame."""
    greeting = b"\xff\0\0\0\0\0\0\0\x01\x7f"
    for words in (chance.randbytes(2000), greeting + chance.randbytes(500), greeting + b"\x03\0NULL" + b"\x02" * 300):
        with suppress(OSError), socket.create_connection((address, port), timeout=2.0) as line:
            line.settimeout(0.5)
            line.sendall(words)
            line.recv(100)


def _node(run: FaultedRun, stage: str) -> str:
    """The machine of a stage, by where its process's namespace is."""
    process = run.stages().get(stage)
    if process is not None:
        with suppress(OSError, psutil.Error):
            mine = Path(f"/proc/{process.pid}/ns/net").stat().st_ino
            for node in run.machines.addresses:
                if run.machines.site.netns(node).stat().st_ino == mine:
                    return node
    return sorted(run.machines.addresses)[0]


def _recovered(run: FaultedRun, began_s: float) -> None:
    """Wait until every cluster has made an update since now, and none is away."""
    now_s = time.monotonic()

    def there() -> bool:
        away = set[str]()
        for at_s, one in run.records:
            if at_s >= began_s and one["kind"] == "lost":
                away.add(one["cluster"])
            elif one["kind"] == "replaced":
                away.discard(one["cluster"])
            elif one["kind"] in ("restarted", "taken_over"):
                away.clear()
        return not away and all(run.last_update_s(each, now_s) for each in CLUSTERS)

    run.until(there)


def _first_gradient_s(run: FaultedRun, cluster: str, began_s: float) -> float:
    """For how long the cluster made no update: the longest gap between two of them since the fault."""
    moments = [began_s, *run.last_update_s(cluster, began_s)]
    return max((after - before for before, after in pairwise(moments)), default=0.0)


def _outcome(run: FaultedRun, session: Session, folder: Path) -> Record:
    """Wait for the end of the run, and say what came of it."""
    with suppress(Ended):
        try:
            run.until(lambda: False, HUNG_S)
        except Hung:
            return {"code": None, "hung": True, "tail": run.output[-1500:]}
    out: Record = {"code": run.code, "hung": False}
    with suppress(OSError, ValueError):
        summary = json.loads((folder / "disk/r/summary.json").read_text())
        out |= {"loss": summary["held_out_loss"], "samples": summary["samples"]}
    out["faults_run"] = len(session.faults)
    if run.code != 0:
        out["tail"] = run.output[-1500:]
    return out
