"""Peak memory of each process of runs of three sizes, checkpoints included, and what a checkpoint costs while training.

Runs as a user starts them, `ravnest run` through Ray on this machine: two clusters of two stages, and then one cluster
of three, which resumes from the last checkpoint of the other and so has other cuts.

While a checkpoint is written, from the commit of its round to its event, the fleet makes updates. Their rate is
compared with that in windows as long after the commits of rounds that were not saved: merges are in both.
"""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cluster_planner import Fleet, Node, Plan, make_plan
from experiments.harness.report import ROOT, Cell, Claim, Panel, Part, Series, Table
from experiments.large.watched_run import DRIVER, Process, driver_of, watched_run
from ravnest.job.config import Job, job_from_mapping
from ravnest.job.materials import capture_job, load_data
from ravnest.planning.workload import workload
from ravnest.splitting import CapturedModel

MIB = 1 << 20
MOST_DRIVER_MIB = 700
MOST_LOST = 0.05
JOB_FILE = ROOT / "experiments" / "large" / "job.yaml"  # its folder alone counts: the job is in the plan
NODES, OTHER_NODES = 4, 3
ROUNDS_A_CHECKPOINT = 4


@dataclass(frozen=True)
class Size:
    """A model, how many layers of which width, and how long it is trained."""

    layers: int
    width: int
    samples: int


SIZES = (Size(8, 560, 2400), Size(8, 1250, 1200), Size(12, 2040, 480))
QUICK = (Size(4, 128, 960),)


@dataclass(frozen=True)
class Trained:
    """What one run was seen to take."""

    model_bytes: int
    processes: Sequence[Process]
    resumed: Sequence[Process]
    """Those of the run that resumed it."""
    checkpoints: int
    lost: float | None
    """The part of the fleet's speed that a checkpoint costs while it is written; None where nothing compares."""
    writing_s: float
    """Seconds from the commit of a round to its checkpoint, the median."""

    @property
    def driver(self) -> int:
        """The peak of the driver, in bytes."""
        return driver_of(self.processes).peak

    @property
    def resuming_driver(self) -> int:
        """The peak of the driver of the run that resumed, in bytes."""
        return driver_of(self.resumed).peak

    @property
    def stage(self) -> int:
        """The largest peak of a stage, in bytes."""
        return max(each.peak for each in (*self.processes, *self.resumed) if each.name != DRIVER)


def job_of(size: Size, rounds: int = 20) -> Job:
    """The job that is trained: of 20 rounds, or some more when it is resumed."""
    round_samples = size.samples // 20
    return job_from_mapping(
        {
            "model": {
                "factory": "experiments.large.wide_model:model",
                "args": {"layers": size.layers, "width": size.width},
            },
            "data": {"factory": "experiments.large.wide_model:data"},
            "loss": "cross_entropy",
            "micro_batch": 4,
            "update_every": 1,
            "optimizer": {"name": "adamw", "lr": 1e-4},
            "average_every": round_samples,
            "evaluate_every": ROUNDS_A_CHECKPOINT * round_samples,
            "stop": {"samples": rounds * round_samples},
            "seed": 0,
        }
    )


def trained(size: Size, folder: Path) -> Trained:
    """Plan and run, resume with another plan, and look at the processes until they end."""
    job = job_of(size)
    captured = capture_job(job, JOB_FILE, load_data(job, JOB_FILE))
    out = folder / "run"
    processes = watched_run(folder, plan_of(job, captured, NODES), out)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    windows = saved_windows(lines)
    resumed = watched_run(folder, plan_of(job_of(size, rounds=22), captured, OTHER_NODES), out, "--resume")
    return Trained(
        sum(unit.parameter_bytes for unit in captured.costs.units),
        processes,
        resumed,
        sum(line["kind"] == "checkpoint" for line in lines),
        lost_share(lines),
        statistics.median(end - begin for begin, end in windows),
    )


def plan_of(job: Job, captured: CapturedModel, count: int) -> Plan:
    """A plan for so many equal nodes."""
    nodes = tuple(
        Node(name=f"n{index}", flops_per_s=2e10, memory_bytes=8 * 10**9, up_bytes_per_s=1e8, down_bytes_per_s=1e8)
        for index in range(count)
    )
    fleet, costs = Fleet(nodes, (), ()), captured.costs
    return make_plan(fleet, costs, workload(job), job=job.model_dump(mode="json"), job_file=str(JOB_FILE), min_stages=2)


def saved_windows(lines: Sequence[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """From metrics.jsonl: when each checkpoint was under way, from the commit of its round until it was written."""
    commits = {line["round"]: line["at_s"] for line in lines if line["kind"] == "round"}
    return [(commits[line["round"]], line["at_s"]) for line in lines if line["kind"] == "checkpoint"]


def lost_share(lines: Sequence[Mapping[str, Any]]) -> float | None:
    """From metrics.jsonl: the part of the updates that are not made while a checkpoint is written.

    The last checkpoint is left out, since nothing trains beside it, and so are the first round and its checkpoint, by
    which not every stage has made an update. None where no round is left to compare with.
    """
    updates = sorted(line["at_s"] for line in lines if line["kind"] == "update" and "loss" in line)
    commits = {line["round"]: line["at_s"] for line in lines if line["kind"] == "round"}
    saved = {line["round"]: line["at_s"] for line in lines if line["kind"] == "checkpoint"}
    middle = sorted(commits)[1:-1]
    windows = [(commits[number], saved[number]) for number in middle if number in saved]
    if not windows or not updates:
        return None
    length_s = sum(end - begin for begin, end in windows) / len(windows)
    others = [
        (commits[number], commits[number] + length_s)
        for number in middle
        if number not in saved
        and commits[number] + length_s <= updates[-1]
        and not any(begin < commits[number] + length_s and commits[number] < end for begin, end in windows)
    ]
    if not others:
        return None
    return 1.0 - _rate(updates, windows) / _rate(updates, others)


def _rate(updates: Sequence[float], windows: Sequence[tuple[float, float]]) -> float:
    """Updates per second inside the windows."""
    made = sum(begin < at <= end for begin, end in windows for at in updates)
    return made / sum(end - begin for begin, end in windows)


def run(*, quick: bool) -> Part:
    """Measure, and judge."""
    runs = []
    for size in QUICK if quick else SIZES:
        with TemporaryDirectory() as folder:
            runs.append(trained(size, Path(folder)))
    shares = [each.lost for each in runs if each.lost is not None]
    most, resuming = max(each.driver for each in runs), max(each.resuming_driver for each in runs)
    claims = [
        *(
            Claim(
                name,
                f"peak memory of the driver of {what}, at any of the sizes",
                f"<= {MOST_DRIVER_MIB} MiB",
                f"{peak / MIB:.0f} MiB",
                peak <= MOST_DRIVER_MIB * MIB,
            )
            for name, what, peak in (
                ("driver", "a new run", most),
                ("resume", "a run that resumes onto another plan", resuming),
            )
        ),
        Claim(
            "lost",
            "speed of the fleet that a checkpoint costs while it is written, mean over the sizes",
            f"<= {MOST_LOST:.0%}",
            "nothing to compare with" if not shares else f"{sum(shares) / len(shares):+.1%} (each: {_each(shares)})",
            None if quick or not shares else sum(shares) / len(shares) <= MOST_LOST,
        ),
    ]
    rows: list[list[Cell]] = [
        [
            round(each.model_bytes / 1e6, 1),
            round(each.driver / MIB),
            round(each.resuming_driver / MIB),
            round(each.stage / MIB),
            each.checkpoints,
            round(each.writing_s, 2),
            "-" if each.lost is None else f"{each.lost:+.1%}",
        ]
        for each in runs
    ]
    columns = [
        "model, MB",
        "driver, MiB",
        "driver that resumes, MiB",
        "largest stage, MiB",
        "checkpoints",
        "one takes, s",
        "speed lost",
    ]
    sizes = [each.model_bytes / 1e6 for each in runs]
    return Part(
        "checkpoint",
        "Checkpoints: peak memory, and speed lost",
        claims,
        [Table("Two clusters of two stages, AdamW", columns, rows)],
        [
            Panel(
                "Peak memory",
                "model, MB",
                "MiB",
                [
                    Series("driver", sizes, [each.driver / MIB for each in runs]),
                    Series("driver that resumes", sizes, [each.resuming_driver / MIB for each in runs]),
                    Series("largest stage", sizes, [each.stage / MIB for each in runs]),
                ],
                target=MOST_DRIVER_MIB,
            )
        ],
        [
            "All processes share this machine, its two cores and its disk, where a fleet has its own. The driver's peak"
            " holds torch, Ray and the planner's packages, some 450 MiB.",
            "Before checkpoints came in pieces the same model of 200 MB took 1,821 MiB in the driver, one of 50 MB"
            " 778 MiB, and one of 10 MB 522 MiB (measured once, on the same machine).",
        ],
    )


def _each(shares: Sequence[float]) -> str:
    return ", ".join(f"{share:+.1%}" for share in shares)
