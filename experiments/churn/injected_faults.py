"""Faults that happen to real runs on this machine.

Each run has two clusters of two stages, each stage a process in a network namespace of its own, with links of
100 Mbit/s, and a driver beside them; threads stand in for Ray (experiments/churn/faulted). A fault happens while the
stages start, and four more while the run trains, each once all clusters train again after the one before. Eight kinds
at five moments come in an order by a seed. A link that is cut stays so for 8 or 30 s. After a driver was killed, or a
run has ended, it is started again with `--resume`. A run that does not go on within four minutes counts as hung. While
the disk is full nothing is written down, so nothing is known of updates either. What every fault came to stands in
injected_faults.jsonl, which a later call adds to.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from experiments.churn.faulted.injecting import Record, session_of
from experiments.churn.faulted.judging import WANTED, judged
from experiments.churn.faulted.listed import LATER, Session, sessions
from experiments.churn.faulted.machines import SITE, Machines
from experiments.harness.report import ROOT, Part

JOB = Path(__file__).parent / "faulted" / "job"
KEPT = Path(__file__).parent / "injected_faults.jsonl"


def measure(*, quick: bool, faults: int = WANTED, kept: Path = KEPT) -> Part:
    """Inject so many faults more, or with `quick` those of one session, and judge all that there are.

    With 0 nothing is injected, and what is kept is judged.
    """
    if quick:
        kept = Path(tempfile.mkdtemp(prefix="churn-faults-")) / KEPT.name
    if quick or faults > 0:
        _inject(1 if quick else faults, kept)
    return judged(read(kept), quick=quick, note=" ".join((__doc__ or "").split("\n\n")[1].split()))


def _inject(faults: int, kept: Path) -> None:
    """Inject so many faults, rounded up to whole sessions, after those that are kept. Sessions that were begun before,
    and broken off, are not begun again."""
    if os.geteuid() != 0:
        raise RuntimeError("network namespaces and a small file system need root")
    before = read(kept)
    begun = {record.get("session", record.get("end")) for record in before}
    most = (1 + LATER) * (1 + max((number for number in begun if number is not None), default=0)) + faults

    def keep(record: Record) -> None:
        with kept.open("a") as file:
            file.write(json.dumps(record) + "\n")
        print(json.dumps(record)[:300], file=sys.stderr, flush=True)

    with Machines(SITE) as machines:
        if not any(record.get("undisturbed") for record in before):
            keep({"undisturbed": True, **undisturbed(machines)})
        for session in sessions(most):
            if session.number in begun or faults <= 0:
                continue
            with planned() as folder:
                session_of(session, folder, machines, keep)
            faults -= len(session.faults)


def read(kept: Path) -> list[Record]:
    """All records so far."""
    return [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []


def undisturbed(machines: Machines) -> Record:
    """What becomes of the same run to which nothing happens."""
    with planned() as folder:
        told: list[Record] = []
        session_of(Session(-1, ()), folder, machines, told.append)
    return {key: value for key, value in told[-1].items() if key != "end"}


@contextmanager
def planned() -> Iterator[Path]:
    """A folder with the job and its plan, for the length of a `with` block."""
    with tempfile.TemporaryDirectory(prefix="churn-faults-") as name:
        folder = Path(name) / "job"
        shutil.copytree(JOB, folder)
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "ravnest", "plan", "nodes.yaml", "--min-stages", "2"]
        subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL, timeout=300)
        yield folder
