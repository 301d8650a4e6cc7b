"""Faults that happen to real runs on this machine.

Each run has two clusters of two stages, each stage a process in a network namespace of its own, with links of
100 Mbit/s, and a driver beside them; threads stand in for Ray (experiments/churn/faulted). A fault happens while the
stages start, and four more while the run trains, each once all clusters train again after the one before. Eight kinds
at five moments come in an order by a seed. A link that is cut stays so for 8 or 30 s. After a driver was killed, or a
run has ended, it is started again with `--resume`. A run that does not go on within four minutes counts as hung. While
the disk is full nothing is written down, so nothing is known of updates either. What every fault came to stands in
injected_faults.jsonl, with the commit, which a later call adds to. Four such runs are under way at once.
"""

import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from experiments.churn.faulted.faulted_run import Record
from experiments.churn.faulted.injecting import session_of
from experiments.churn.faulted.judging import WANTED, judged
from experiments.churn.faulted.listed import LATER, UNDISTURBED, Session, sessions
from experiments.churn.faulted.machines import Machines, Site
from experiments.harness.report import ROOT, Part, commit

JOB = Path(__file__).parent / "faulted" / "job"
KEPT = Path(__file__).parent / "injected_faults.jsonl"
SITES = 4
"""So many runs are under way at once, each on machines of its own."""


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
    before, lock, code = read(kept), threading.Lock(), commit()
    begun = {record.get("session", record.get("end")) for record in before}
    most = (1 + LATER) * (1 + max((number for number in begun if number is not None), default=0)) + faults

    def keep(record: Record) -> None:
        with lock, kept.open("a") as file:
            file.write(json.dumps({**record, "commit": code}) + "\n")
            print(json.dumps(record)[:300], file=sys.stderr, flush=True)

    todo: queue.SimpleQueue[Session] = queue.SimpleQueue()
    if not any(record.get("undisturbed") for record in before):
        todo.put(UNDISTURBED)
    for session in sessions(most):
        if session.number not in begun and faults > 0:
            todo.put(session)
            faults -= len(session.faults)

    def work(site: Site) -> None:
        with Machines(site) as machines:
            while not todo.empty():
                with suppress(queue.Empty):
                    session = todo.get_nowait()
                    with _copied(job, site) as folder:
                        session_of(session, folder, machines, keep)

    with planned() as job, ThreadPoolExecutor(SITES) as together:
        try:
            for done in [together.submit(work, Site(number)) for number in range(SITES)]:
                done.result()
        finally:
            with suppress(queue.Empty):  # whoever is told to end finishes the sessions that are under way
                while True:
                    todo.get_nowait()


def read(kept: Path) -> list[Record]:
    """All records so far."""
    return [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []


@contextmanager
def planned() -> Iterator[Path]:
    """A folder with the job and its plan for site 0, for the length of a `with` block."""
    with tempfile.TemporaryDirectory(prefix="churn-faults-") as name:
        folder = Path(name) / "job"
        shutil.copytree(JOB, folder)
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "ravnest", "plan", "nodes.yaml", "--min-stages", "2"]
        subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL, timeout=300)
        yield folder


@contextmanager
def _copied(job: Path, site: Site) -> Iterator[Path]:
    """A copy of that folder for a site, for the length of a `with` block."""
    with tempfile.TemporaryDirectory(prefix="churn-faults-") as name:
        folder = Path(name) / "job"
        shutil.copytree(job, folder)
        plan = (folder / "plan.yaml").read_text()
        plan = plan.replace(Site(0).network, site.network).replace(str(job), str(folder))
        (folder / "plan.yaml").write_text(plan)
        yield folder
