"""What a run tells whoever watches it: an event for each thing that happens, the result at the end, and metrics.jsonl.

The module fixes the schema of the events, and writes and reads metrics.jsonl, which holds one JSON object a line. Every
line has `kind` and `at_s` (seconds since the training began); the other fields are those of its kind. A line is handed
to the operating system as soon as it is written, and a line that a crash has torn is dropped. Counts are of the whole
fleet unless a cluster is named; losses are in nats for cross-entropy, and None where there is none yet.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Protocol, Self

from ravnest.errors import InvalidInput
from ravnest.formatting import json_value


@dataclass(frozen=True)
class RunLimit:
    """Where a run ends that is to end before its job says: whichever comes first. None: no such limit.

    The job's own end still counts for its schedule of learning rates. A run that this limit has ended can be resumed.
    """

    samples: int | None = None
    """Of the whole fleet."""
    seconds: float | None = None
    """Of training, by this machine's clock."""


NO_LIMIT = RunLimit()


@dataclass(frozen=True)
class PhaseEvent:
    """The run has entered a phase: "starting Ray", "placing 6 stages", "training", "draining", "saving"."""

    name: str
    detail: str = ""


@dataclass(frozen=True)
class ClusterProgress:
    """One cluster so far. `loss`: mean training loss since the event before. `max_staleness`: updates,
    highest seen.
    """

    name: str
    samples: int
    samples_per_s: float
    loss: float | None
    max_staleness: int
    updates: int
    rounds_merged: int


@dataclass(frozen=True)
class ProgressEvent:
    """Where the fleet is. `total_samples` is None for a run that stops by time."""

    elapsed_s: float
    samples: int
    total_samples: int | None
    clusters: tuple[ClusterProgress, ...]


@dataclass(frozen=True)
class EvaluatedEvent:
    """The held-out data has passed through the stages. `final`: with the anchor, after the last round."""

    samples: int
    loss: float
    metrics: Mapping[str, float]
    final: bool


@dataclass(frozen=True)
class RoundCommittedEvent:
    """A round of averaging has been committed: every member merges it."""

    round: int
    samples: int
    seconds: float | None = None
    """Since it was opened."""


@dataclass(frozen=True)
class CheckpointWrittenEvent:
    """A checkpoint is complete on disk, as of a committed round."""

    path: Path
    round: int


@dataclass(frozen=True)
class NoticeEvent:
    """Something the user should know and need not act on at once."""

    text: str


RunEvent = PhaseEvent | ProgressEvent | EvaluatedEvent | RoundCommittedEvent | CheckpointWrittenEvent | NoticeEvent


class Observer(Protocol):
    """Whoever watches a run. `on` is called from the driver's thread and must return soon."""

    def on(self, event: RunEvent) -> None: ...


@dataclass(frozen=True)
class TimeShares:
    """Where a stage's time went, as shares of `seconds`. `compute`, `averaging`, `evaluation`, `handoff` and `bubble`
    make the whole.
    """

    seconds: float
    compute: float
    """Forward, backward and update together."""
    forward: float
    backward: float
    update: float
    averaging: float
    """Taking snapshots and merging; the rings themselves move beside the computing."""
    evaluation: float
    handoff: float
    """Between the stage's threads: neither computing nor waiting for anybody."""
    bubble: float
    """Waiting, whatever for."""
    waiting: Mapping[str, float]
    """The bubble by cause, as in ravnest/pipeline/time_ledger.py: input, window, staleness, lag, norm, drain."""


@dataclass(frozen=True)
class StageMemory:
    """What a stage's tensors took at most, beside what the plan's arithmetic says. Both without the process itself."""

    planned_bytes: int
    """With `window` micro-batches in flight."""
    tensor_bytes: int
    parts: Mapping[str, int]
    """Each at its own peak, as in ravnest/stage/memory.py; `tensor_bytes` is their sum."""
    window: int | None = None
    """The largest that the run used, the plan's or one that it was tuned to. None: not known."""


@dataclass(frozen=True)
class StageFigures:
    """What one stage came to. `steady`: between its first update and the drain, None where that was too short."""

    stage: str
    node: str
    steady: TimeShares | None
    overall: TimeShares | None
    memory: StageMemory | None = None
    step_s: float | None = None
    """Seconds per micro-batch in the steady state, by the stage's own clock."""
    mean_staleness: float | None = None
    max_staleness: int | None = None
    """Of all gradients of the stage, in updates."""
    late_share: float | None = None
    """By how much this machine was late, of the computing that it imitated; None where it imitated none."""
    link_late_s: float | None = None
    """How much later than it should a message was handed on by emulated links, in the mean; None without these."""


@dataclass(frozen=True)
class RunResult:
    """What a run came to. `baselines`: held-out losses to compare with. `stopped_early`: by Ctrl-C, and
    resumable. `encrypted`: the mode in which its speed was measured.
    """

    out_dir: Path
    weights_path: Path
    metrics_path: Path
    checkpoint_path: Path
    loss_curve_path: Path | None
    held_out_loss: float | None
    metrics: Mapping[str, float]
    baselines: Mapping[str, float]
    samples: int
    updates: int
    rounds: int
    seconds: float
    samples_per_s: float
    max_staleness: int
    mean_staleness: float
    sample_text: str | None
    stopped_early: bool
    stages: tuple[StageFigures, ...] = ()
    trace_path: Path | None = None
    encrypted: bool = False
    windows: Mapping[str, int] = field(default_factory=dict)
    """Of each cluster, as it was at the end."""
    averaging_s: float | None = None
    """From the opening of a round to its commit, mean over this session's rounds but the last, which ends the run."""
    session_samples: int | None = None
    """Of a run that was resumed: how many of `samples` were made since, in `seconds`."""


_KINDS = {
    PhaseEvent: "phase",
    ProgressEvent: "progress",
    EvaluatedEvent: "evaluated",
    RoundCommittedEvent: "round",
    CheckpointWrittenEvent: "checkpoint",
    NoticeEvent: "notice",
}


def kind_of(event: RunEvent) -> str:
    """The event's `kind` in metrics.jsonl."""
    return _KINDS[type(event)]


def as_plain(value: RunEvent | RunResult) -> dict[str, object]:
    """The fields as JSON takes them: paths are strings, and a number that is not finite is null."""
    return {name: json_value(item) for name, item in asdict(value).items()}


class MetricsWriter:
    """Appends lines to a file, which may be a resumed run's."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _drop_torn_line(path)
        self._file: IO[str] = path.open("a", encoding="utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def write(self, kind: str, at_s: float, **fields: object) -> None:
        """One line, flushed. JSON has no NaN or infinity: such numbers become null."""
        record = {"kind": kind, "at_s": round(at_s, 3), **fields}
        self._file.write(json.dumps(json_value(record), allow_nan=False, separators=(",", ":")) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_metrics(path: Path) -> list[dict[str, object]]:
    """All whole lines. Raises InvalidInput, naming the line, for one that is not a record."""
    text = path.read_text(encoding="utf-8")
    records = []
    # What follows the last newline is a line still being written, or torn by a crash.
    for number, line in enumerate(text.split("\n")[:-1], start=1):
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise InvalidInput(f"is not JSON: {error.msg}", path=str(path), key=f"line {number}") from None
        if not isinstance(record, dict) or not {"kind", "at_s"} <= record.keys():
            raise InvalidInput("is no record: it needs kind and at_s", path=str(path), key=f"line {number}")
        records.append(record)
    return records


def _drop_torn_line(path: Path) -> None:
    if not path.exists():
        return
    with path.open("rb+") as file:
        contents = file.read()
        file.truncate(contents.rfind(b"\n") + 1)
