"""metrics.jsonl: what happened in a run, one JSON object a line.

Every line has `kind` and `at_s` (seconds since the run began); the other fields are the kind's own. Decides that a
line is on its way to the disk as soon as it is written, and that a line torn by a crash is dropped. Does not know
which kinds there are.
"""

import json
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from ravnest.errors import InvalidInput
from ravnest.formatting import json_value


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
