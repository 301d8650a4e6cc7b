"""A run's metrics for TensorBoard.

In: the metrics.jsonl of a run, which may still be going on. Out: event files. A cluster's losses, learning rate and
staleness are drawn over its own samples or updates, which of one that joined count from where its schedule begins; and
figures of the whole fleet over the fleet's samples.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ravnest.checkpoints.run_folder import RunFolder
from ravnest.driver.observe.metrics_file import read_metrics
from ravnest.errors import InvalidInput
from ravnest.results.run_state import find_run

_SHARES = ("compute", "averaging", "evaluation", "handoff", "bubble")


@dataclass(frozen=True)
class Scalar:
    """One point of one curve. `step` counts samples or updates; `at_s` is in seconds since training began."""

    curve: str
    value: float
    step: int
    at_s: float


class Scalars:
    """Makes points of records, which are given in their order."""

    def __init__(self) -> None:
        self._fleet_samples = 0

    def of(self, record: Mapping[str, Any]) -> Iterator[Scalar]:
        """Yields the points of one record. Values that are null there are left out."""
        if record["kind"] == "progress":
            self._fleet_samples = record["samples"]
        for curve, value, step in _points(record, self._fleet_samples):
            if value is not None:
                yield Scalar(curve, float(value), step, record["at_s"])


def scalars(records: Iterable[Mapping[str, Any]]) -> Iterator[Scalar]:
    """Yields every point, in the order of the records."""
    made = Scalars()
    for record in records:
        yield from made.of(record)


def _points(record: Mapping[str, Any], fleet_samples: int) -> Iterator[tuple[str, float | None, int]]:
    match record["kind"]:
        case "update":
            cluster, update, staleness = record["cluster"], record["update"], record["staleness"]
            if "loss" in record:
                yield f"loss/{cluster}", record["loss"], record["samples"]
                yield f"lr/{cluster}", record["lr"], update
            if staleness:
                stage = f"{cluster}.s{record['stage']}"
                yield f"staleness/{stage}", sum(staleness) / len(staleness), update
        case "evaluated":
            yield "held_out/loss", record["loss"], record["samples"]
            for name, value in record["metrics"].items():
                yield f"held_out/{name}", value, record["samples"]
        case "progress":
            for cluster in record["clusters"]:
                yield f"samples_per_s/{cluster['name']}", cluster["samples_per_s"], fleet_samples
        case "time":
            for stage, shares in record["stages"].items():
                for share in _SHARES:
                    yield f"time_{share}/{stage}", shares[share], fleet_samples
        case "memory":
            stage = f"{record['cluster']}.s{record['stage']}"
            yield f"tensor_bytes/{stage}", sum(record["tensor_bytes"].values()), fleet_samples


def to_tensorboard(run_dir: Path, out_dir: Path) -> int:
    """Write event files into `out_dir`, in place of those that are there, and return the number of points.

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
    points = list(scalars(read_metrics(metrics)))
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        for old in out_dir.glob("events.out.tfevents.*"):
            old.unlink()  # TensorBoard would draw both
        writer = SummaryWriter(str(out_dir))
    except OSError as error:
        raise InvalidInput(f"cannot be written ({error.strerror or error})", path=str(out_dir)) from None
    with writer:
        for point in points:
            writer.add_scalar(point.curve, point.value, point.step, walltime=point.at_s)
    return len(points)
