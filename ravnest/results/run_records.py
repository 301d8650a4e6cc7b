"""The records of a run, of which days may have been written already, and which may go on.

In: metrics.jsonl, which a run may be writing to, and history.jsonl beside it. Out: records, in their order, in pieces
of bounded size. Of a file that is no longer than WHOLE_BYTES every record comes. Of a longer one the last TAIL_BYTES
come, and before them what history.jsonl has kept of the past. A run that has no history.jsonl, of an older version, is
read from its beginning, in as many looks as that takes.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from ravnest.driver.observe.history import BEGINNING
from ravnest.driver.observe.metrics_file import HISTORY, WHOLE_BYTES, event_of, record_of, records_from_end
from ravnest.driver.observe.report import ProgressEvent, RunEvent
from ravnest.errors import InvalidInput
from ravnest.results.run_log import lines_since

TAIL_BYTES = WHOLE_BYTES // 2
_SLACK_BYTES = 64 * 1024
"""So much that was not read yet is no past, but what has just come, or a line that is being written."""
_MOST_LINE_BYTES = 1024 * 1024

Record = dict[str, object]


class RunRecords:
    """The records of one metrics.jsonl."""

    def __init__(self, metrics: Path) -> None:
        self._metrics, self._history = metrics, metrics.with_name(HISTORY)
        self._at = 0
        """The byte of metrics.jsonl that comes next, also while the history is read."""
        self._past_at: int | None = None
        """The byte of history.jsonl that comes next; None where its part is done."""
        self._round: Record | None = None
        """The last round of the past, with what came to each stage, which history.jsonl leaves out."""
        size = _size(metrics)
        if size > WHOLE_BYTES and _is_whole(self._history):
            self._at = _line_after(metrics, size - TAIL_BYTES)
            self._past_at = 0
            self._round = self._last_round()

    @property
    def behind(self) -> bool:
        """Whether there is more than was read."""
        return self._left > _SLACK_BYTES or self.in_past

    @property
    def in_past(self) -> bool:
        """Whether the history is being read."""
        return self._past_at is not None

    @property
    def part_read(self) -> float:
        """Of what is to be read, from 0 to 1."""
        if not self.behind:
            return 1.0
        done = self._at if self._past_at is None else self._past_at
        left = self._left + (0 if self._past_at is None else max(0, _size(self._history) - self._past_at))
        return done / (done + left) if done + left else 1.0

    def news(self) -> Iterator[Record | InvalidInput] | None:
        """The records since the last look, at most one piece of the file; in place of a line that is no record, why.
        Returns None where the file was begun anew: then another RunRecords reads it."""
        if self._past_at is not None:
            return self._past(self._past_at)
        lines, at = lines_since(self._metrics, self._at)
        if at < self._at:
            return None
        self._at = at
        return map(_record, lines)

    def _past(self, begin: int) -> Iterator[Record | InvalidInput]:
        lines, end = lines_since(self._history, begin)
        self._past_at = end if lines else None
        for record in map(_record, lines):
            if _byte_of(record) >= self._at:
                self._past_at = None  # from here on metrics.jsonl is read
                return
            last = self._round
            yield last if last is not None and _byte_of(record) == last["byte"] else record

    @property
    def _left(self) -> int:
        return max(0, _size(self._metrics) - self._at)

    def _last_round(self) -> Record | None:
        try:
            for kept in records_from_end(self._history, "round"):
                if (byte := _byte_of(kept)) < self._at:
                    with self._metrics.open("rb") as file:
                        file.seek(byte)
                        return {**record_of(file.readline(_MOST_LINE_BYTES).decode("utf-8", "replace")), "byte": byte}
        except (InvalidInput, OSError):  # it is shown as history.jsonl has it
            pass
        return None


def events_of(metrics: Path, goes_on: Callable[[], bool], wait: Callable[[], None]) -> Iterator[tuple[float, RunEvent]]:
    """Yields (seconds since training began, event) of a metrics.jsonl, without the progress of each second.

    At the end of the file it waits (`wait` is called) and reads on, for as long as `goes_on` says. Raises InvalidInput
    for a line that is no record.
    """
    records = RunRecords(metrics)
    while True:
        is_over = not goes_on()  # asked first: what was written before the end is read below
        news, came = records.news(), False
        if news is None:
            records = RunRecords(metrics)
            continue
        for record in news:
            came = True
            if isinstance(record, InvalidInput):
                raise record
            event = event_of(record)
            if event is not None and not isinstance(event, ProgressEvent):
                yield float(str(record["at_s"])), event
        if came or records.in_past:
            continue
        if is_over:
            return
        wait()


def _record(line: str) -> Record | InvalidInput:
    try:
        return record_of(line)
    except InvalidInput as error:
        return error


def _byte_of(record: Record | InvalidInput) -> int:
    byte = None if isinstance(record, InvalidInput) else record.get("byte")
    return byte if isinstance(byte, int) else 0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _is_whole(history: Path) -> bool:
    """Whether a history.jsonl knows its metrics.jsonl from the beginning."""
    try:
        with history.open("rb") as file:
            return _record(file.readline(4096).decode("utf-8", "replace")) == dict(BEGINNING)
    except OSError:
        return False


def _line_after(path: Path, byte: int) -> int:
    """Where the first line begins that begins behind that byte."""
    with path.open("rb") as file:
        file.seek(byte)
        file.readline()
        return file.tell()
