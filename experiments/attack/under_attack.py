"""A run under continuous attack, in turns with the same run undisturbed: samples/s, memory, and what is lost.

`ravnest run --encrypt` trains clusters of two stages on this machine, at the pace of its data. Minutes without an
attack alternate with minutes in which a process of strangers (strangers.py) attacks each port of the run that speaks
ZeroMQ's protocol. So both are measured in the same run, and neither the machine's speed nor its drift is compared.
"""

import contextlib
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from cluster_planner import save_plan
from experiments.attack.strangers import OPEN, speaks_curve
from experiments.harness.paced_plan import equal_stages
from experiments.harness.report import ROOT, Cell, Claim, Panel, Part, Series, Table
from ravnest.job.config import job_from_mapping
from ravnest.job.materials import capture_job, load_data
from ring_allreduce.transport import LinkShape

JOB_FILE = Path(__file__).parents[1] / "harness" / "paced_model.py"
CLI = "from ravnest.cli.main import main; main()"
MICRO_BATCH, LAYERS, READ_S = 4, 4, 0.01
CLUSTERS, QUICK_CLUSTERS = 2, 1
PHASE_S, SETTLE_S = 60.0, 5.0
"""The length of a phase, and what passes at its beginning before it counts: connections open and close."""
QUICK_PHASE_S, QUICK_SETTLE_S = 4.0, 1.0
START_S, END_S = 180.0, 120.0
LEAST_RATE, MOST_MIB = 0.97, 32
MIB = 1 << 20


@dataclass
class Phase:
    """Some seconds with or without an attack."""

    attacked: bool
    samples_per_s: float
    resident: dict[int, int]
    """By process of the run: the most bytes of resident memory."""
    opened: Counter[str] = field(default_factory=Counter)
    """Connections of strangers by kind."""
    at_once: int = 0


def write_plan(folder: Path, minutes: float, clusters: int) -> Path:
    """A plan of clusters of two stages for a job that lasts so long. The strangers share the machine's cores with the
    run, which real ones do not. So it is the reading of a sample that takes time."""
    job = job_from_mapping(
        {
            "model": {"factory": "paced_model:stack", "args": {"layers": LAYERS}},
            "data": {"factory": "paced_model:slow_noise", "args": {"read_s": READ_S}},
            "loss": "mse",
            "micro_batch": MICRO_BATCH,
            "update_every": 2,
            "optimizer": {"name": "sgd", "lr": 1e-3},
            "average_every": 256,
            "evaluate_every": 10**9,
            "stop": {"minutes": minutes},
        }
    )
    captured = capture_job(job, JOB_FILE, load_data(job, JOB_FILE))
    link = LinkShape(125e6, 0.0)
    given = {"clusters": clusters, "stages": 2, "forward_s": 0.01, "link": link, "window": 8}
    path = folder / "plan.yaml"
    save_plan(equal_stages(job, JOB_FILE, captured, **given), path)  # type: ignore[arg-type] # of mixed types
    return path


class Victim:
    """The run, from outside."""

    def __init__(self, process: "subprocess.Popen[bytes]", out: Path, said: Path) -> None:
        """`said`: the file of what it prints, which nobody else reads. In a pipe it would stop when that is full."""
        self._process, self._said = process, said
        self._metrics = out / "metrics.jsonl"

    def lines(self) -> list[dict[str, object]]:
        """What metrics.jsonl has by now; a line that is being written is left out."""
        text = self._metrics.read_text(encoding="utf-8") if self._metrics.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def samples(self) -> int:
        """Samples of all clusters so far."""
        made = {
            line["cluster"]: int(str(line["samples"]))
            for line in self.lines()
            if "samples" in line and "cluster" in line
        }
        return sum(made.values())

    def members(self) -> list[psutil.Process]:
        """The processes of the run that listen for peers: its stages and the driver."""
        own = psutil.Process(self._process.pid)
        return [each for each in (own, *own.children(recursive=True)) if self._ports(each)]

    def ports(self) -> list[int]:
        """The ports of these."""
        return sorted(port for each in self.members() for port in self._ports(each))

    @staticmethod
    def _ports(process: psutil.Process) -> list[int]:
        with contextlib.suppress(psutil.Error):
            found = {one.laddr.port for one in process.net_connections("tcp") if one.status == psutil.CONN_LISTEN}
            return [port for port in found if speaks_curve(port)]
        return []

    def require_running(self) -> None:
        """Raises RuntimeError when the run has ended."""
        if self._process.poll() is not None:
            said = self._said.read_text(encoding="utf-8", errors="replace")[-2000:]
            raise RuntimeError(f"ravnest run ended with {self._process.returncode}: {said}")


@contextlib.contextmanager
def victim(folder: Path, minutes: float, clusters: int) -> Iterator[Victim]:
    """Start the run, and yield it once it trains. It is ended by an order to stop, and then has END_S."""
    out, said = folder / "run", folder / "said.log"
    command = [
        sys.executable,
        "-c",
        CLI,
        "run",
        str(write_plan(folder, minutes, clusters)),
        "--out",
        str(out),
        "--encrypt",
        "--json",
    ]
    with (
        said.open("wb") as file,
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=file, cwd=ROOT) as process,
    ):
        try:
            found, end_s = Victim(process, out, said), time.monotonic() + START_S
            while not found.samples():
                found.require_running()
                if time.monotonic() > end_s:
                    raise RuntimeError(f"the run made no update within {START_S:.0f} s")
                time.sleep(0.5)
            yield found
        finally:
            process.send_signal(2)  # as Ctrl-C: a checkpoint, and the end
            try:
                process.wait(timeout=END_S)
            except subprocess.TimeoutExpired:
                process.kill()


def phase(run: Victim, members: list[psutil.Process], ports: list[int], *, attacked: bool, quick: bool) -> Phase:
    """Let the run go on for one phase, attacked or not."""
    phase_s, settle_s = (QUICK_PHASE_S, QUICK_SETTLE_S) if quick else (PHASE_S, SETTLE_S)
    command = [sys.executable, "-m", "experiments.attack.strangers", *map(str, ports), "--seconds", str(phase_s)]
    strangers = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) if attacked else None
    try:
        time.sleep(settle_s)
        began_s, before, resident = time.monotonic(), run.samples(), dict.fromkeys((each.pid for each in members), 0)
        while time.monotonic() < began_s + phase_s - settle_s:
            run.require_running()
            for each in members:
                resident[each.pid] = max(resident[each.pid], int(each.memory_info().rss))
            time.sleep(0.25)
        rate = (run.samples() - before) / (time.monotonic() - began_s)
        found = Phase(attacked, rate, resident)
        if strangers is not None:
            said, _ = strangers.communicate(timeout=END_S)
            opened = json.loads(said)
            found.at_once = opened.pop("at once")
            found.opened = Counter(opened)
        return found
    finally:
        if strangers is not None and strangers.poll() is None:
            strangers.kill()
            strangers.wait()


def run(*, quick: bool, minutes: float) -> Part:
    """Attack in every other phase, until it was attacked for so many minutes."""
    count = 1 if quick else max(1, round(60 * minutes / PHASE_S))
    clusters = QUICK_CLUSTERS if quick else CLUSTERS
    with TemporaryDirectory() as folder, victim(Path(folder), 4 * minutes + 30, clusters) as attacked_run:
        members, ports = attacked_run.members(), attacked_run.ports()
        phases = []
        for attacked in itertools.islice(itertools.cycle([False, True]), 2 * count):
            phases.append(phase(attacked_run, members, ports, attacked=attacked, quick=quick))
            print(f"  {'attacked' if attacked else 'quiet'}: {phases[-1].samples_per_s:.1f} samples/s", file=sys.stderr)
        lost = [line for line in attacked_run.lines() if line["kind"] in ("lost", "suspected", "restarted")]
    return judged(phases, lost, ports, quick=quick)


def judged(phases: list[Phase], lost: list[dict[str, object]], ports: list[int], *, quick: bool) -> Part:
    """The part of the report. `lost`: the lines of metrics.jsonl that tell of a stage that was lost or suspected."""
    quiet, attacked = ([each for each in phases if each.attacked == which] for which in (False, True))
    rates = [statistics.fmean(each.samples_per_s for each in some) for some in (quiet, attacked)]
    most = [{pid: max(each.resident[pid] for each in some) for pid in phases[0].resident} for some in (quiet, attacked)]
    grown = max(most[1][pid] - most[0][pid] for pid in most[0])
    opened = sum((each.opened for each in attacked), Counter[str]())
    at_once = max(each.at_once for each in attacked)
    rate = rates[1] / rates[0] if rates[0] else 0.0
    claims = [
        Claim(
            "rate",
            "samples/s under attack, of those without",
            f">= {LEAST_RATE:.0%}",
            f"{rate:.1%} ({rates[1]:.1f} of {rates[0]:.1f})",
            None if quick else rate >= LEAST_RATE,
        ),
        Claim(
            "memory",
            "resident memory of a stage or the driver under attack, above its most without",
            f"<= {MOST_MIB} MiB",
            f"{grown / MIB:+.1f} MiB at most",
            grown <= MOST_MIB * MIB,
        ),
        Claim("lost", "stages that were lost or suspected", "none", f"{len(lost)}", not lost),
        Claim(
            "strangers",
            "connections of strangers that were open at once",
            f"{OPEN}",
            f"{at_once} at most, {sum(opened.values()):,} in all",
            None if quick else at_once >= OPEN,
        ),
    ]
    columns = ["phase", "attacked", "samples/s", "most resident of a process, MiB", "connections opened", "at once"]
    rows: list[list[Cell]] = [
        [
            number,
            "yes" if each.attacked else "no",
            each.samples_per_s,
            max(each.resident.values()) / MIB,
            sum(each.opened.values()),
            each.at_once,
        ]
        for number, each in enumerate(phases, 1)
    ]
    kinds: list[list[Cell]] = [[kind, count] for kind, count in sorted(opened.items())]
    clusters, phase_s = (QUICK_CLUSTERS, QUICK_PHASE_S) if quick else (CLUSTERS, PHASE_S)
    notes = [
        f"Clusters of two stages and a driver on one machine ({clusters}), encrypted, {len(ports)} ports on loopback. "
        f"Phases of {phase_s:.0f} s in turns; the first seconds of each do not count. To read a sample takes time and "
        "no processor, since strangers and run share this machine's cores; strangers have the least priority.",
        "The handshakes that are replayed were recorded on their way, from openings with wrong keys.",
    ]
    tables = [Table("Phases", columns, rows), Table("Strangers", ["kind", "connections"], kinds)]
    series = [
        Series(
            name,
            [float(number) for number, each in enumerate(phases, 1) if each.attacked == which],
            [each.samples_per_s for each in phases if each.attacked == which],
        )
        for name, which in (("undisturbed", False), ("attacked", True))
    ]
    panel = Panel("Samples/s of a run, attacked in every other phase", "phase", "samples/s", series)
    return Part("attack", "A run under continuous attack", claims, tables, [panel], notes)
