"""What users ask of a run that goes on: that a node leaves it with notice, or is back. Requests are files.

In: the run's folder, and a request of another process. Out: the requests that were made, each once. A request is
written beside its place and moved there, so that it is whole when it is seen. What is no request is thrown away.
"""

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

from ravnest.errors import InvalidInput

Kind = Literal["leave", "join"]
_PATTERN = ".request-*.json"
_MOST_BYTES = 4096
MOST_WAITING = 1000
"""The most requests that may wait to be taken."""


@dataclass(frozen=True)
class NodeRequest:
    """The node is to leave the run, or may run stages again."""

    kind: Kind
    node: str


def put_request(folder: Path, request: NodeRequest) -> None:
    """Leave a request in a run's folder. Raises InvalidInput where that is not possible."""
    name = f".request-{time.time_ns():020d}-{os.getpid()}.json"
    try:
        if sum(1 for _ in folder.glob(_PATTERN)) >= MOST_WAITING:
            raise InvalidInput(f"{MOST_WAITING} requests wait already: nobody takes them", path=str(folder))
        whole = folder / f"{name}.part"
        whole.write_text(json.dumps(asdict(request)), encoding="utf-8")
        whole.rename(folder / name)
    except OSError as error:
        raise InvalidInput(f"cannot be written: {error.strerror or error}", path=str(folder / name)) from None


def take_requests(folder: Path) -> list[NodeRequest]:
    """Take the requests of a run's folder, the oldest first. They are gone then."""
    found = []
    for path in sorted(folder.glob(_PATTERN)):
        try:
            text = path.read_bytes()[:_MOST_BYTES]
            path.unlink()
        except OSError:
            continue  # it is tried again
        request = _parsed(text)
        if request is not None:
            found.append(request)
    return found


def _parsed(text: bytes) -> NodeRequest | None:
    try:
        content = json.loads(text)
        kind, node = content["kind"], content["node"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return NodeRequest(kind, node) if kind in get_args(Kind) and isinstance(node, str) else None
