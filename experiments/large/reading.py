"""Does a dataset that takes 5 ms a sample slow a stage that takes 20 ms a micro-batch of four samples?

A dataset and a stream are read through the processes that read ahead of a first stage (ravnest/job/readers.py), which
are started as in a run. What is imitated is the stage: between two micro-batches it waits for its 20 ms. What is
compared is the median time from one micro-batch to the next, with data that take no time. A whole pipeline is not run.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from experiments.harness.report import ROOT, Claim, Part, Table
from ravnest.job.config import Job, job_from_mapping
from ravnest.job.materials import load_data
from ravnest.job.readers import ReadAhead, Reader
from ravnest.training.batches import BatchSource
from ravnest.training.streams import sampler_of

STAGE_S, SAMPLE_MS, MICRO_BATCH, WORKERS = 0.020, 5.0, 4, 2
MOST_SLOWER = 0.05
JOB_FILE = ROOT / "experiments" / "large" / "job.yaml"  # its folder alone counts
KINDS = ("data", "stream")


@dataclass(frozen=True)
class Row:
    """One way to read, and the median seconds from one micro-batch to the next."""

    kind: str
    sample_ms: float
    workers: int
    step_s: float


def job_of(kind: str, sample_ms: float) -> Job:
    """A job whose data take so long to read. Only its data are used."""
    return job_from_mapping(
        {
            "model": {"factory": "experiments.large.wide_model:model", "args": {"layers": 1, "width": 4}},
            "data": {"factory": f"experiments.large.wide_model:{kind}", "args": {"sample_ms": sample_ms}},
            "micro_batch": MICRO_BATCH,
            "stop": {"samples": 10_000},
        }
    )


def measured(kind: str, sample_ms: float, workers: int, count: int) -> Row:
    """Reads so many micro-batches, and takes as long for each as the stage would."""
    job = job_of(kind, sample_ms)
    data = load_data(job, JOB_FILE)
    sampler = sampler_of(data.train, job.seed, (0.0, 1.0), job.micro_batch)
    readers = [Reader(job, JOB_FILE) for _ in range(workers)]
    for reader in readers:
        reader.started()
    held_out: Sequence[range] = ()
    source = ReadAhead(data, sampler, held_out, None, readers) if workers else BatchSource(data, sampler, held_out)
    try:
        source.train(0)
        times = []
        for number in range(1, count + 1):
            began_s = time.monotonic()
            time.sleep(STAGE_S)
            source.train(number)
            times.append(time.monotonic() - began_s)
    finally:
        source.close()
    return Row(kind, sample_ms, workers, median(times))


def run(*, quick: bool) -> Part:
    """Measure, and judge."""
    ways = [(kind, ms, workers) for kind in KINDS for ms, workers in ((0.0, WORKERS), (SAMPLE_MS, WORKERS))]
    ways.append(("data", SAMPLE_MS, 0))
    return part_of([measured(*way, count=20 if quick else 250) for way in ways], quick=quick)


def part_of(rows: Sequence[Row], *, quick: bool = False) -> Part:
    """The part of the report: pure."""
    by_way = {(row.kind, row.sample_ms, row.workers): row.step_s for row in rows}
    claims = []
    for kind in KINDS:
        slower = by_way[kind, SAMPLE_MS, WORKERS] / by_way[kind, 0.0, WORKERS] - 1.0
        claims.append(
            Claim(
                kind,
                f"a {kind if kind == 'stream' else 'dataset'} of {SAMPLE_MS:g} ms a sample, with {WORKERS} workers,"
                f" slows a stage of {1e3 * STAGE_S:g} ms a micro-batch of {MICRO_BATCH}",
                f"<= {MOST_SLOWER:.0%}",
                f"{slower:+.1%}",
                None if quick else slower <= MOST_SLOWER,
            )
        )
    return Part(
        "reading",
        "Reading ahead",
        claims,
        [
            Table(
                "From one micro-batch to the next, the median",
                ("read as", "a sample takes, ms", "workers", "ms"),
                [(row.kind, row.sample_ms, row.workers, round(1e3 * row.step_s, 2)) for row in rows],
            )
        ],
        notes=["The stage is imitated by a wait; its readers are those of a run."],
    )
