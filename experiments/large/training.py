"""A GPT that fills this machine, trained in stages: what each process holds, what checkpoints cost, and what comes out.

For each size one cluster of four stages trains with AdamW through `ravnest run`, writes checkpoints while it goes on,
and is resumed on three stages with other cuts. The result is exported, and a process of its own loads it with
transformers: all names must fit, and its loss on the held-out set must be the one that the run reported.

A stage's peak is held to what its plan says. A checkpoint's cost is counted in updates: while it is written
(checkpoint.lost_share), and over the whole run, where the time of a checkpoint has its weight.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cluster_planner import Fleet, Node, Plan, make_plan
from experiments.harness.report import ROOT, Cell, Claim, Panel, Part, Series, Table
from experiments.large.checkpoint import MIB, MOST_DRIVER_MIB, MOST_LOST, lost_share, saved_windows
from experiments.large.gpt import config_of
from experiments.large.watched_run import CLI, Process, driver_of, watched_run
from ravnest.job.config import Job, job_from_mapping
from ravnest.job.materials import capture_job, load_data
from ravnest.planning.workload import with_optimizer, workload
from ravnest.splitting import CapturedModel

LARGEST = 400_000_000
SIZES = (10_000_000, 100_000_000, LARGEST)
QUICK = (200_000,)
STAGES, OTHER_STAGES = 4, 3
NODE_BYTES = 6 * 10**9
JOB_FILE = ROOT / "experiments" / "large" / "job.yaml"  # its folder alone counts: the job is in the plan
ROUNDS, ROUNDS_AFTER, ROUNDS_A_CHECKPOINT = 9, 2, 4
MICRO_BATCH = 2
SAME_LOSS = 1e-4
"""How far the loss that transformers gives may be from the reported one, relative to it: float32 sums differ."""
COLUMNS = (
    *("parameters", "driver, MiB", "that resumes", "updates/s", "a checkpoint, s", "lost meanwhile", "lost in all"),
    *("loss at first", "at the end", "of transformers"),
)
LOADS = """
import json, sys, torch
from transformers import AutoModelForCausalLM
from experiments.large.gpt import data
torch.set_num_threads(1)
model, found = AutoModelForCausalLM.from_pretrained(sys.argv[1], output_loading_info=True)
pairs = [data().held_out[index] for index in range(len(data().held_out))]
with torch.no_grad():
    logits = model.eval()(torch.stack([x for x, _ in pairs])).logits
loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.stack([y for _, y in pairs]).flatten())
wrong = {key: sorted(map(str, found[key])) for key in ("missing_keys", "unexpected_keys", "mismatched_keys")}
print(json.dumps({"loss": float(loss), "numbers": sum(p.numel() for p in model.parameters()), **wrong}))
"""


@dataclass(frozen=True)
class Trained:
    """What one size was seen to take and to give."""

    parameters: int
    stages: Mapping[str, tuple[int, int]]
    """The peak of each stage's process, and what the plan says it takes, both in bytes; `resumed` in its name."""
    drivers: tuple[int, int]
    """The peaks of the drivers of the run and of the one that resumed it."""
    updates_per_s: float
    writing_s: float
    """The mean seconds from the commit of a round to its checkpoint, while training."""
    lost: float | None
    """The part of the updates that is not made while a checkpoint is written; None where nothing compares."""
    written_share: float
    """The part of the time, from the first update to the last, in which a checkpoint was being written."""
    losses: tuple[float, float]
    """The first reported loss on the held-out set and the last."""
    loaded: Mapping[str, Any]
    """What transformers found: the loss, the number of parameters, and the names that do not fit."""

    @property
    def total_lost(self) -> float | None:
        """The part of the run's updates that checkpoints cost."""
        return None if self.lost is None else self.lost * self.written_share

    @property
    def strictly(self) -> bool:
        """Whether transformers found all names, and no others."""
        return not any(self.loaded[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))

    @property
    def same_loss(self) -> bool:
        """Whether the exported model gives the loss that the run reported."""
        return abs(float(self.loaded["loss"]) - self.losses[1]) <= SAME_LOSS * self.losses[1]


def job_of(parameters: int, rounds: int) -> Job:
    """The job that is trained for so many rounds."""
    round_samples = round_samples_of(parameters)
    return job_from_mapping(
        {
            "model": {"huggingface": config_of(parameters)},
            "data": {"factory": "experiments.large.gpt:data"},
            "loss": "cross_entropy",
            "micro_batch": MICRO_BATCH,
            "update_every": 2,
            "optimizer": {"name": "adamw", "lr": 1e-4},
            "average_every": round_samples,
            "evaluate_every": ROUNDS_A_CHECKPOINT * round_samples,
            "stop": {"samples": rounds * round_samples},
            "seed": 0,
        }
    )


def round_samples_of(parameters: int) -> int:
    """Samples of a round: fewer for larger models, of which an update takes seconds."""
    return 16 if parameters >= LARGEST // 2 else 80


def trained(parameters: int, folder: Path) -> Trained:
    """Plan, run, resume, export and load a model of at least so many parameters."""
    job = job_of(parameters, ROUNDS)
    captured = capture_job(job, JOB_FILE, load_data(job, JOB_FILE))
    plan = plan_of(job, captured, STAGES)
    out = folder / "run"
    first = watched_run(folder, plan, out)
    lines = lines_of(out)
    again = plan_of(job_of(parameters, ROUNDS + ROUNDS_AFTER), captured, OTHER_STAGES)
    second = watched_run(folder, again, out, "--resume")
    reported = [line["loss"] for line in lines_of(out) if line["kind"] == "evaluated"]
    windows = saved_windows(lines)[:-1]  # nothing trains beside the last one
    updates = [line["at_s"] for line in lines if line["kind"] == "update" and "loss" in line]
    seconds = updates[-1] - updates[0]
    return Trained(
        sum(unit.parameter_bytes for unit in captured.costs.units) // 4,
        {**peaks(first, plan, ""), **peaks(second, again, "resumed ")},
        (driver_of(first).peak, driver_of(second).peak),
        (len(updates) - 1) / seconds,
        sum(end - begin for begin, end in windows) / len(windows),
        lost_share(lines),
        sum(end - begin for begin, end in windows) / seconds,
        (reported[0], reported[-1]),
        loaded(out, folder / "exported"),
    )


def plan_of(job: Job, captured: CapturedModel, stages: int) -> Plan:
    """A plan of one cluster of so many equal nodes."""
    nodes = tuple(
        Node(name=f"n{index}", flops_per_s=2e10, memory_bytes=NODE_BYTES, up_bytes_per_s=1e8, down_bytes_per_s=1e8)
        for index in range(stages)
    )
    return make_plan(
        Fleet(nodes, (), ()),
        with_optimizer(captured, job),
        workload(job),
        job=job.model_dump(mode="json"),
        job_file=str(JOB_FILE),
        min_stages=stages,
    )


def peaks(processes: Sequence[Process], plan: Plan, prefix: str) -> dict[str, tuple[int, int]]:
    """What each stage's process took, and what the plan says."""
    predicted = plan.predicted.clusters[0].stages
    planned = {f"c0.s{index}": stage.memory_bytes for index, stage in enumerate(predicted)}
    return {prefix + each.name: (each.peak, planned[each.name]) for each in processes if each.name in planned}


def lines_of(out: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics."""
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def loaded(out: Path, folder: Path) -> Mapping[str, Any]:
    """Export the run's weights, and load them with transformers. Raises CalledProcessError where either fails."""
    command = [sys.executable, "-c", CLI, "export", str(out), "--huggingface", str(folder)]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
    ended = subprocess.run(
        [sys.executable, "-c", LOADS, str(folder)], check=True, cwd=ROOT, capture_output=True, text=True
    )
    found: Mapping[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def run(*, quick: bool, parameters: Sequence[int] = ()) -> Part:
    """Measure each size, and judge."""
    found = []
    for size in parameters or (QUICK if quick else SIZES):
        with TemporaryDirectory() as folder:
            found.append(trained(size, Path(folder)))
        print(f"training: {found[-1]}", file=sys.stderr, flush=True)
    return part_of(found, quick=quick)


def part_of(found: Sequence[Trained], *, quick: bool) -> Part:
    """The part of the report: pure."""
    sizes = [each.parameters / 1e6 for each in found]
    largest = [max(each.stages.values()) for each in found]
    return Part(
        "training",
        "A model that fills this machine",
        claims_of(found, quick=quick),
        [
            Table(
                "One cluster of four stages, AdamW, and three when it is resumed",
                COLUMNS,
                [_row(each) for each in found],
            ),
            Table(
                "Each stage's process",
                ("parameters", "stage", "peak, MiB", "planned, MiB"),
                [
                    [f"{each.parameters / 1e6:.0f} M", name, round(peak / MIB), round(planned / MIB)]
                    for each in found
                    for name, (peak, planned) in each.stages.items()
                ],
            ),
        ],
        [
            Panel(
                "Peak memory while a GPT is trained",
                "parameters, millions",
                "MiB",
                [
                    Series("driver", sizes, [each.drivers[0] / MIB for each in found]),
                    Series("driver that resumes", sizes, [each.drivers[1] / MIB for each in found]),
                    Series("largest stage", sizes, [peak / MIB for peak, _ in largest]),
                    Series("its plan", sizes, [planned / MIB for _, planned in largest]),
                ],
                target=MOST_DRIVER_MIB,
                log_x=True,
                log_y=True,
            )
        ],
        [
            "All processes share this machine, its two cores and its disk, where a fleet has its own: what a checkpoint"
            " takes of the processor in the driver, a stage is short of here.",
        ],
    )


def claims_of(found: Sequence[Trained], *, quick: bool) -> list[Claim]:
    """What the runs bear out."""
    most = max(peak for each in found for peak in each.drivers)
    over = [(peak / planned, name) for each in found for name, (peak, planned) in each.stages.items()]
    lost = [each for each in found if each.lost is not None]
    meanwhile = max((each.lost for each in lost if each.lost is not None), default=None)
    total = max((each.total_lost for each in lost if each.total_lost is not None), default=None)
    size = max(each.parameters for each in found)
    return [
        Claim(
            "size", "parameters of the largest model", f"≥ {LARGEST:,}", f"{size:,}", None if quick else size >= LARGEST
        ),
        Claim(
            "driver",
            "peak memory of the driver, new or resuming, at any of the sizes",
            f"≤ {MOST_DRIVER_MIB} MiB",
            f"{most / MIB:.0f} MiB",
            most <= MOST_DRIVER_MIB * MIB,
        ),
        Claim(
            "stages",
            "peak memory of a stage's process, relative to its plan, the largest",
            "≤ 100%",
            f"{max(over)[0]:.0%} ({max(over)[1]})",
            max(over)[0] <= 1.0,
        ),
        _lost_claim("lost meanwhile", "part of the updates not made while a checkpoint is written", meanwhile, quick),
        _lost_claim("lost in all", "part of a run's updates that its checkpoints cost", total, quick),
        Claim(
            "loads",
            "transformers loads the exported model, with all names and no others",
            "all sizes",
            ", ".join("yes" if each.strictly else "no" for each in found),
            all(each.strictly for each in found),
        ),
        Claim(
            "loss",
            "the exported model gives the last loss that the run reported",
            f"within {SAME_LOSS:.0e} of it",
            ", ".join(f"{float(each.loaded['loss']):.6f} ({each.losses[1]:.6f})" for each in found),
            all(each.same_loss for each in found),
        ),
    ]


def _lost_claim(name: str, text: str, share: float | None, quick: bool) -> Claim:
    measured = "nothing to compare with" if share is None else f"{share:+.1%}"
    held = None if quick or share is None else share <= MOST_LOST
    return Claim(name, f"{text}, the most of any size", f"≤ {MOST_LOST:.0%}", measured, held)


def _row(each: Trained) -> list[Cell]:
    return [
        each.parameters,
        *(round(peak / MIB) for peak in each.drivers),
        round(each.updates_per_s, 3),
        round(each.writing_s, 1),
        "-" if each.lost is None else f"{each.lost:+.1%}",
        "-" if each.total_lost is None else f"{each.total_lost:+.1%}",
        *(round(loss, 4) for loss in each.losses),
        round(float(each.loaded["loss"]), 4),
    ]
