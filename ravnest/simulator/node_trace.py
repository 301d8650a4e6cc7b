"""Reads a trace: which nodes came and went when, as it was recorded somewhere.

In: a CSV file without a header, a line `milliseconds,add|remove,node` for each change. Out: the changes, in the order
of their moments. A node that is added at 0 ms is there from the start, and one that is added later is not.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from pathlib import Path

from ravnest.errors import InvalidInput
from ravnest.simulator.presence import NodeChange

_MS = 1e-3
MOST_BYTES = 64 << 20


def read_trace(
    path: str | os.PathLike[str], *, speed: float, noticed_after_s: float, notice_s: float
) -> tuple[NodeChange, ...]:
    """Return the changes of a trace.

    Arguments:
        speed: how many times faster than recorded they come.
        noticed_after_s: how long nobody knows that a node is gone, where it gave no notice.
        notice_s: how long before it is gone a node says so; 0: it does not.

    Raises:
        InvalidInput, which names the file and the line.
    """
    try:
        if Path(path).stat().st_size > MOST_BYTES:
            raise InvalidInput(f"is larger than {MOST_BYTES >> 20} MiB", path=str(path))
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # a path with a NUL is a ValueError, too
        raise InvalidInput(f"cannot be read: {error}", path=str(path)) from None
    found: list[NodeChange] = []
    there: set[str] = set()
    last_ms = 0.0
    for number, row in enumerate(_rows(text, path), start=1):
        if not row:
            continue
        at_ms, kind, node = _parsed(row, path, number)
        if at_ms < last_ms:
            raise InvalidInput(
                "its lines have to be in the order of their moments", path=str(path), key=f"line {number}"
            )
        last_ms = at_ms
        if (kind == "add") == (node in there):
            said = "is there already" if kind == "add" else "is not there"
            raise InvalidInput(f"node {node!r} {said}", path=str(path), key=f"line {number}")
        at_s = at_ms * _MS / speed
        if kind == "add":
            there.add(node)
            found.append(NodeChange(at_s, node, "back", why="it has come"))
            continue
        there.discard(node)
        if notice_s > 0:
            found.append(NodeChange(max(0.0, at_s - notice_s), node, "notice", why="it is taken away"))
            noticed_after_s = 0.0
        found.append(NodeChange(at_s, node, "gone", noticed_after_s))
    if not found:
        raise InvalidInput("holds no change: a line is milliseconds,add|remove,node", path=str(path))
    return tuple(sorted(found, key=lambda each: each.at_s))


def _rows(text: str, path: str | os.PathLike[str]) -> Iterator[list[str]]:
    rows = csv.reader(text.splitlines())
    try:
        yield from rows
    except csv.Error as error:  # a field that is longer than the module takes
        raise InvalidInput(f"cannot be read: {error}", path=str(path), key=f"line {rows.line_num}") from None


def _parsed(row: list[str], path: str | os.PathLike[str], number: int) -> tuple[float, str, str]:
    expected = "must be milliseconds,add|remove,node"
    try:
        at_ms, kind, node = float(row[0]), row[1].strip(), row[2].strip()
    except (ValueError, IndexError):
        raise InvalidInput(f"{expected}, not {','.join(row)!r}", path=str(path), key=f"line {number}") from None
    if not 0 <= at_ms < float("inf") or kind not in ("add", "remove") or not node or len(row) != 3:
        raise InvalidInput(f"{expected}, not {','.join(row)!r}", path=str(path), key=f"line {number}")
    return at_ms, kind, node
