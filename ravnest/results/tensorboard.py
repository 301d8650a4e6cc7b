"""A run's metrics for TensorBoard.

In: the metrics.jsonl of a run, which may still be going on. Out: event files. Every curve is drawn over the samples
that the fleet had made by then, so that those of a cluster that joined late stand beside those of the others.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from ravnest.checkpoints.run_folder import RunFolder
from ravnest.driver.observe.metrics_file import records_in
from ravnest.errors import InvalidInput
from ravnest.results.run_state import find_run

_SHARES = ("compute", "averaging", "evaluation", "handoff", "bubble")


@dataclass(frozen=True)
class Scalar:
    """One point of one curve. `step` counts samples of the fleet; `at_s` is in seconds since training began."""

    curve: str
    value: float
    step: int
    at_s: float


class Scalars:
    """Makes points of records, which are given in their order."""

    def __init__(self) -> None:
        self._samples: int | None = None
        """Of the fleet; None at the beginning of a session that was resumed, whose updates do not begin at 0."""

    def of(self, record: Mapping[str, Any]) -> Iterator[Scalar]:
        """Yields the points of one record. Values that are null there are left out."""
        match record["kind"]:
            case "progress":
                self._samples = record["samples"]
            case "update":
                self._updated(record)
            case "evaluated":
                yield from self._made_of(record, record["samples"])
                return
        if self._samples is not None:
            yield from self._made_of(record, self._samples)

    def _updated(self, record: Mapping[str, Any]) -> None:
        """Count an update's samples until the next record of progress says how many there are."""
        if self._samples is None and record["update"] == 0:
            self._samples = 0
        if self._samples is not None and "samples" in record:
            self._samples += record["samples"] // (record["update"] + 1)

    def _made_of(self, record: Mapping[str, Any], samples: int) -> Iterator[Scalar]:
        for curve, value in _values(record):
            if value is not None:
                yield Scalar(curve, float(value), samples, record["at_s"])


def scalars(records: Iterable[Mapping[str, Any]]) -> Iterator[Scalar]:
    """Yields every point, in the order of the records."""
    made = Scalars()
    for record in records:
        yield from made.of(record)


def _values(record: Mapping[str, Any]) -> Iterator[tuple[str, float | None]]:
    match record["kind"]:
        case "update":
            cluster, staleness = record["cluster"], record["staleness"]
            if "loss" in record:
                yield f"loss/{cluster}", record["loss"]
                yield f"lr/{cluster}", record["lr"]
            if staleness:
                yield f"staleness/{cluster}.s{record['stage']}", sum(staleness) / len(staleness)
        case "evaluated":
            yield "held_out/loss", record["loss"]
            for name, value in record["metrics"].items():
                yield f"held_out/{name}", value
        case "progress":
            for cluster in record["clusters"]:
                yield f"samples_per_s/{cluster['name']}", cluster["samples_per_s"]
        case "time":
            for stage, shares in record["stages"].items():
                for share in _SHARES:
                    yield f"time_{share}/{stage}", shares[share]
        case "memory":
            yield f"tensor_bytes/{record['cluster']}.s{record['stage']}", sum(record["tensor_bytes"].values())


_TOLD_EVERY = 1000


def to_tensorboard(run_dir: Path, out_dir: Path, progress: Callable[[float], None] = lambda done: None) -> int:
    """Write event files into `out_dir`, in place of those that are there, and return the number of points. `progress`
    hears which share of them is written, from 0 to 1.

    Raises InvalidInput where there is no such run, where tensorboard is not installed, or where the folder cannot be
    written.
    """
    metrics = RunFolder(run_dir).metrics
    if not metrics.is_file():
        metrics = RunFolder(find_run(run_dir)).metrics
    if not metrics.is_file():
        raise InvalidInput("no run is here: its metrics.jsonl is missing", path=str(run_dir))
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise InvalidInput(
            "needs the package tensorboard; install it with: pip install tensorboard", key="--tensorboard"
        ) from None
    count = sum(1 for _ in scalars(records_in(metrics)))  # the points of a run of days fit no memory
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        for old in out_dir.glob("events.out.tfevents.*"):
            old.unlink()  # TensorBoard would draw both
        writer = SummaryWriter(str(out_dir))
    except OSError as error:
        raise InvalidInput(f"cannot be written ({error.strerror or error})", path=str(out_dir)) from None
    with writer:
        for number, point in enumerate(islice(scalars(records_in(metrics)), count)):
            if number % _TOLD_EVERY == 0:
                progress(number / count)
            writer.add_scalar(point.curve, point.value, point.step, walltime=point.at_s)
    return count
