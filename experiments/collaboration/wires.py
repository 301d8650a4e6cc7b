"""What shorter gradients cost: the loss after the same number of steps, and the bytes that a volunteer sends for one.

Eight volunteers that come and go, as in the part comes_and_goes. Each way of sending is tried with
the same seeds: whole gradients as float32, float16 and int8, and two thin matrices of rank 1, 2 and 4 instead of each
large one, as float16. Every way feeds back what it has lost, at the volunteers and at the backbone. Virtual transfers
take the same time for all of them, so that the steps are of the same samples and only the loss is compared. A
difference is the mean over the pairs of one seed; the spread is that of float32 over the seeds.
"""

from collections.abc import Mapping
from pathlib import Path
from statistics import mean, stdev

from experiments.collaboration.comes_and_goes import JOB, Collaboration
from experiments.harness.report import Claim, Part, Table
from ravnest.collaboration.packing import Feedback
from ravnest.collaboration.trainer import Trainer
from ravnest.job.config import Job, load_job

STEPS = 60
SEEDS = 6

WAYS: Mapping[str, tuple[str, int | None]] = {
    "float32": ("float32", None),
    "float16": ("float16", None),
    "int8": ("int8", None),
    "rank 4, float16": ("float16", 4),
    "rank 2, float16": ("float16", 2),
    "rank 1, float16": ("float16", 1),
}


def measure(*, quick: bool) -> Part:
    """One collaboration for each way and seed."""
    steps, seeds = (6, 2) if quick else (STEPS, SEEDS)
    losses = {way: [loss_of(way, seed, steps) for seed in range(seeds)] for way in WAYS}
    sent = {way: bytes_of_one(job_of(JOB, way, 0), JOB) for way in WAYS}
    spread = stdev(losses["float32"])
    differences = {way: mean(losses[way]) - mean(losses["float32"]) for way in WAYS}
    low = "rank 4, float16"
    return Part(
        name="wires",
        title="Shorter gradients",
        claims=[
            Claim(
                "low rank",
                "held-out loss of rank 4 above that of float32, of the spread of float32 over seeds",
                "at most 1",
                f"{differences[low] / spread:.2f} ({differences[low]:+.4f} of {spread:.4f})",
                None if quick else differences[low] <= spread,
            ),
            Claim(
                "bytes",
                "bytes of a contribution of rank 4, of float16's",
                "at most 0.25",
                f"{sent[low] / sent['float16']:.2f}",
                sent[low] <= 0.25 * sent["float16"],
            ),
        ],
        tables=[
            Table(
                f"after {steps} steps, {seeds} seeds",
                ("gradients", "bytes of a contribution", "held-out loss, mean", "to float32, mean", "least", "most"),
                [
                    (
                        way,
                        sent[way],
                        round(mean(losses[way]), 5),
                        f"{differences[way]:+.5f}",
                        f"{min(_pairs(losses, way)):+.5f}",
                        f"{max(_pairs(losses, way)):+.5f}",
                    )
                    for way in WAYS
                ],
            )
        ],
        notes=[" ".join((__doc__ or "").split("\n\n")[1].split())],
    )


def _pairs(losses: Mapping[str, list[float]], way: str) -> list[float]:
    return [one - other for one, other in zip(losses[way], losses["float32"], strict=True)]


def job_of(job_file: Path, way: str, seed: int) -> Job:
    """The example's job with another way of sending."""
    wire, rank = WAYS[way]
    job = load_job(job_file)
    return job.model_copy(
        update={
            "seed": seed,
            "gradient_rank": rank,
            "averaging": job.averaging.model_copy(update={"wire": wire}),
        }
    )


def loss_of(way: str, seed: int, steps: int) -> float:
    """The held-out loss of a collaboration of this way after so many steps."""
    world = Collaboration(seed, steps, job=job_of(JOB, way, seed))
    world.run()
    return world.backbone.evaluate()["loss"]


def bytes_of_one(job: Job, job_file: Path) -> int:
    """Bytes of the tensors of one contribution."""
    trainer = Trainer(job, job_file)
    trainer.compute(0)
    trainer.count(job.micro_batch)
    said = Feedback(trainer.packing).pieces("contribution", 0, job.micro_batch, trainer.contribution(), job.micro_batch)
    return sum(one.numel() * one.element_size() for _, tensors in said for one in tensors)
