"""metrics.jsonl: what happens in a run, as one JSON object a line.

In: kinds and fields, which are written, or a file, which is read. Out: lines, or the records in them, and beside them
history.jsonl, the thinned past. Every line has `kind` and `at_s` (seconds since the training began); the other fields
are those of its kind, and of the kinds that ravnest itself reads back they are checked. A line is handed to the
operating system as soon as it is written, and a line that a crash has torn is dropped.
"""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Annotated, Self

import msgspec

from ravnest.driver.observe.history import BEGINNING, OFTEN, History
from ravnest.driver.observe.report import EVENT_TYPES, EvaluatedEvent, RunEvent
from ravnest.driver.observe.trackers import Trackers
from ravnest.errors import InvalidInput
from ravnest.formatting import json_value
from ravnest.job_sections import MOST

_Count = Annotated[int, msgspec.Meta(ge=0, le=MOST)]
_Number = float | None
"""None stands for a number that was not finite."""


HISTORY = "history.jsonl"
WHOLE_BYTES = 16 * 1024 * 1024
"""A metrics.jsonl that is no longer is read whole; of a longer one the past is read from history.jsonl."""


class _Cluster(msgspec.Struct):
    name: str
    samples_per_s: _Number
    loss: _Number


class _Progress(msgspec.Struct):
    samples: _Count
    clusters: list[_Cluster]


class _Evaluated(msgspec.Struct):
    samples: _Count
    loss: _Number
    metrics: dict[str, _Number]


class _Update(msgspec.Struct):
    cluster: str
    stage: _Count
    update: _Count
    lr: _Number
    staleness: list[_Count]
    loss: _Number | msgspec.UnsetType = msgspec.UNSET
    samples: _Count | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        if (self.loss is msgspec.UNSET) != (self.samples is msgspec.UNSET):
            raise ValueError("needs both loss and samples, or neither")


class _Shares(msgspec.Struct):
    compute: _Number
    averaging: _Number
    evaluation: _Number
    handoff: _Number
    bubble: _Number


class _Time(msgspec.Struct):
    stages: dict[str, _Shares]


class _Memory(msgspec.Struct):
    cluster: str
    stage: _Count
    tensor_bytes: dict[str, _Count]


class _Any(msgspec.Struct):
    kind: str
    at_s: float


_READ_BACK: dict[str, type[msgspec.Struct]] = {
    "progress": _Progress,
    "evaluated": _Evaluated,
    "update": _Update,
    "time": _Time,
    "memory": _Memory,
}
"""The kinds that ravnest reads: for the loss curve and for TensorBoard. Of other kinds only `kind` and `at_s` count."""


class MetricsWriter:
    """Appends lines to metrics.jsonl, which may be that of a run which is resumed, and to history.jsonl beside it.

    A line that the disk refuses is lost, and no half of it stays: `take_lost` says so, and the next line is tried
    again. A metrics.jsonl that was begun without a history.jsonl goes on without one.
    """

    def __init__(self, path: Path, trackers: Trackers | None = None) -> None:
        """`trackers` are given each record too, while the writer is entered.

        Raises InvalidInput where a file cannot be opened.
        """
        self._trackers = trackers
        self._lines = _Lines(path)
        self._history = self._past = None
        past = path.with_name(HISTORY)
        if past.exists() and not _knows(past, self._lines.end):
            past.unlink()  # it is of another metrics.jsonl, or of lines that a crash has lost
        if self._lines.end == 0 or past.exists():
            self._past = _Lines(past)
            self._history = History(next(records_from_end(past, "past"), None))
        self._reason: str | None = None
        self._lost = 0

    def __enter__(self) -> Self:
        if self._trackers is not None:
            self._trackers.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def write(self, kind: str, at_s: float, **fields: object) -> None:
        """Write one line at once. JSON has no NaN or infinity, so such numbers become null."""
        record = {name: json_value(value) for name, value in fields.items()}
        record = {"kind": kind, "at_s": round(at_s, 3), **record}
        if self._trackers is not None:
            self._trackers.give(record)
        begin = self._lines.end
        if self._written(self._lines, record):
            self._reason = None
            if self._history is not None:
                self._keep(([] if begin else [dict(BEGINNING)]) + self._history.take(record, begin))

    def _keep(self, records: Iterable[Mapping[str, object]]) -> None:
        for each in records:
            if self._past is not None:
                self._written(self._past, each)

    def _written(self, lines: _Lines, record: Mapping[str, object]) -> bool:
        try:
            lines.append((json.dumps(record, allow_nan=False, separators=(",", ":")) + "\n").encode())
        except OSError as error:
            self._reason = self._reason or error.strerror or str(error)
            self._lost += 1
            return False
        return True

    def take_lost(self) -> tuple[int, str | None]:
        """How many lines were lost since the last call, and why they are still refused; None: they are not."""
        lost, self._lost = self._lost, 0
        return lost, self._reason

    def take_troubles(self) -> list[str]:
        """What has gone wrong with the trackers since the last call, as sentences for the user."""
        return [] if self._trackers is None else self._trackers.take_troubles()

    def close(self) -> None:
        """Close the files, and the trackers."""
        if self._history is not None:
            self._keep(self._history.rest(self._lines.end))
        self._lines.close()
        if self._past is not None:
            self._past.close()
        if self._trackers is not None:
            self._trackers.close()


class _Lines:
    """A file that lines are appended to, each handed to the operating system at once."""

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _drop_torn_line(path)
            self._file: IO[bytes] = path.open("ab", buffering=0)
            self.end = self._file.seek(0, os.SEEK_END)
        except OSError as error:
            raise InvalidInput(f"cannot be written: {error.strerror or error}", path=str(path)) from None
        self._torn = False

    def append(self, line: bytes) -> None:
        """Raises OSError where the disk refuses the line."""
        if self._torn:
            self._file.truncate(self.end)
            self._torn = False
        written = self._file.write(line)
        if written != len(line):
            self._torn = True
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.end += len(line)

    def close(self) -> None:
        self._file.close()


def read_metrics(path: Path) -> list[dict[str, object]]:
    """All whole lines of a metrics.jsonl. Raises as `records_in` does."""
    return list(records_in(path))


def records_in(path: Path) -> Iterator[dict[str, object]]:
    """Yields what the whole lines of a metrics.jsonl, or of a history.jsonl, hold.

    Raises InvalidInput for a file that cannot be read, and, naming the line, for one that is not a record.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    return  # it is still being written, or a crash has torn it
                try:
                    yield _record(line.decode())
                except UnicodeDecodeError:
                    raise InvalidInput("is not UTF-8 text", path=str(path)) from None
                except ValueError as error:
                    raise InvalidInput(str(error), path=str(path), key=f"line {number}") from None
    except OSError as error:
        raise InvalidInput(f"cannot be read: {error.strerror or error}", path=str(path)) from None


def curve_records(metrics: Path) -> Iterator[dict[str, object]]:
    """Yields the records that curves are drawn from: those of the history.jsonl beside a metrics.jsonl which is longer
    than WHOLE_BYTES, else those of metrics.jsonl itself. Raises InvalidInput as `records_in` does."""
    history = metrics.with_name(HISTORY)
    long = metrics.is_file() and metrics.stat().st_size > WHOLE_BYTES and history.is_file()
    return records_in(history if long else metrics)


MOST_READ_BYTES = 64 * 1024 * 1024
"""How far from its end a metrics.jsonl is searched for the last record of a kind: some hours of a run."""
_BLOCK_BYTES = 1024 * 1024
_KIND = b'{"kind":"'


def last_records(path: Path, kinds: Collection[str]) -> dict[str, dict[str, object]]:
    """By kind, the last record of a metrics.jsonl, which a run may be writing to; of what happens seldom, that in the
    history.jsonl beside it, where there is one. A kind that is not found, at the end of a long file, is left out, and
    all kinds are where there is no file.

    Raises InvalidInput for a file that cannot be read, and for a line of such a kind that is no record.
    """
    history = path.with_name(HISTORY)
    if not history.is_file():
        return _last_in(path, kinds)
    seldom = {kind for kind in kinds if kind not in OFTEN}
    return _last_in(history, seldom) | _last_in(path, set(kinds) - seldom)


def _last_in(path: Path, kinds: Collection[str]) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = {}
    if not kinds:
        return found
    try:
        with path.open("rb") as file:
            for line in _lines_from_end(file):
                kind = line[len(_KIND) : line.find(b'"', len(_KIND))].decode("ascii", "replace")
                if line.startswith(_KIND) and kind in kinds and kind not in found:
                    found[kind] = _record(line.decode("utf-8", "replace"))
                if len(found) == len(kinds):
                    break
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise InvalidInput(f"cannot be read: {error.strerror or error}", path=str(path)) from None
    except ValueError as error:
        raise InvalidInput(str(error), path=str(path)) from None
    return found


def records_from_end(path: Path, kind: str) -> Iterator[dict[str, object]]:
    """Yields the records of one kind, the last one first, as far back as `last_records` looks; none where there is no
    file. Raises as `last_records` does."""
    begin = _KIND + kind.encode() + b'"'
    try:
        with path.open("rb") as file:
            for line in _lines_from_end(file):
                if line.startswith(begin):
                    yield _record(line.decode("utf-8", "replace"))
    except FileNotFoundError:
        return
    except OSError as error:
        raise InvalidInput(f"cannot be read: {error.strerror or error}", path=str(path)) from None
    except ValueError as error:
        raise InvalidInput(str(error), path=str(path)) from None


def last_record(path: Path) -> dict[str, object] | None:
    """The last whole line of a metrics.jsonl; None where there is none, or it is no record."""
    try:
        with path.open("rb") as file:
            line = next((line for line in _lines_from_end(file) if line), b"")
        return _record(line.decode("utf-8", "replace"))
    except (OSError, ValueError):
        return None


def _lines_from_end(file: IO[bytes]) -> Iterator[bytes]:
    """Yields the whole lines of the last MOST_READ_BYTES, the last one first."""
    end = at = file.seek(0, os.SEEK_END)
    begun, is_torn = b"", True  # what follows the last newline is still being written, or a crash has torn it
    while at > 0 and end - at < MOST_READ_BYTES:
        step = min(_BLOCK_BYTES, at)
        at -= step
        file.seek(at)
        lines = (file.read(step) + begun).split(b"\n")
        if is_torn and len(lines) > 1:
            lines.pop()
            is_torn = False
        begun = lines[0] if at > 0 or is_torn else b""
        yield from reversed(lines[1:] if at > 0 else lines if not is_torn else [])


def event_of(record: Mapping[str, object]) -> RunEvent | None:
    """The event that a record holds; None for a record of another kind. Raises InvalidInput where it does not fit."""
    wanted = EVENT_TYPES.get(str(record["kind"]))
    if wanted is None:
        return None
    if wanted is EvaluatedEvent:  # the losses of a run that has diverged are no numbers
        losses = [record.get("metrics"), {"loss": record.get("loss")}]
        known = [
            {k: math.nan if v is None else v for k, v in each.items()} for each in losses if isinstance(each, dict)
        ]
        record = {**record, **known[-1], "metrics": known[0]} if len(known) == len(losses) else record
    try:
        return msgspec.convert(record, wanted, dec_hook=lambda kind, value: kind(value))  # of a Path
    except (msgspec.ValidationError, TypeError) as error:
        raise InvalidInput(f"is no {record['kind']}: {error}", path="metrics.jsonl") from None


def record_of(line: str) -> dict[str, object]:
    """The record in one line of a metrics.jsonl. Raises InvalidInput, saying what is wrong, for a line without one."""
    try:
        return _record(line)
    except ValueError as error:
        raise InvalidInput(str(error), path="metrics.jsonl") from None


def _record(line: str) -> dict[str, object]:
    """The record in a line. Raises ValueError, saying what is wrong, for a line that has none."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON: {error.msg if isinstance(error, json.JSONDecodeError) else error}") from None
    try:
        kind = msgspec.convert(record, _Any).kind
        if kind in _READ_BACK:
            msgspec.convert(record, _READ_BACK[kind])
    except (msgspec.ValidationError, OverflowError) as error:
        raise ValueError(f"is no record: {error}") from None
    return dict(record)


def _knows(history: Path, end: int) -> bool:
    """Whether a history.jsonl is that of a metrics.jsonl with so many bytes."""
    last = last_record(history)
    byte = None if last is None else last.get("byte")
    return end > 0 and isinstance(byte, int) and byte <= end


def _drop_torn_line(path: Path) -> None:
    if not path.exists():
        return
    with path.open("rb+") as file:
        end = file.seek(0, os.SEEK_END)
        while end > 0:
            begin = max(0, end - _BLOCK_BYTES)
            file.seek(begin)
            whole = file.read(end - begin).rfind(b"\n") + 1
            if whole:
                file.truncate(begin + whole)
                return
            end = begin
        file.truncate(0)
