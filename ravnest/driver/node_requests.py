"""What is asked of a run that goes on: to end, to save, to evaluate, and which nodes leave or are back. What users ask
is in files.

In: the run's folder, and a request of another process. Out: the requests that were made, each once. A request is
written beside its place and moved there, so that it is whole when it is seen. What is known of a node that comes lies
beside it, as a nodes.yaml. What is no request is thrown away.
"""

import json
import os
import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from cluster_planner import Fleet, load_fleet, save_fleet
from ravnest.checkpoints.run_folder import REQUESTS
from ravnest.errors import InvalidInput
from ravnest.recovery import HourWatch

Kind = Literal["leave", "join"]
RunKind = Literal["stop", "stop_now", "checkpoint", "evaluate"]
_MOST_BYTES = 4096
MOST_WAITING = 1000
"""The most requests that may wait to be taken."""


@dataclass(frozen=True)
class NodeRequest:
    """The node is to leave the run, or may run stages again."""

    kind: Kind
    node: str
    why: str = ""
    """In words, where the clock or Ray asks, and no user does."""
    fleet: Fleet | None = None
    """What is known of a node that the plan does not have, with its links to others; None: nothing was said."""
    noticed: bool = False
    """Whether it leaves because its machine is about to go."""

    @property
    def because(self) -> str:
        """The reason as the end of a sentence."""
        return f" ({self.why})" if self.why else ""


@dataclass(frozen=True)
class RunRequest:
    """The run is to end (with a checkpoint, or `stop_now` without), to write a checkpoint, or to evaluate."""

    kind: RunKind


Request = NodeRequest | RunRequest
_EVERY = (*get_args(Kind), *get_args(RunKind))


def asked(folder: Path, hours: HourWatch | None, utc_s: float) -> list[Request]:
    """Return what was asked since the last call: by users, and by the clock.

    Arguments:
        hours: the hours of the nodes; None: no clock counts.
        utc_s: seconds since a midnight in UTC.
    """
    by_clock = [] if hours is None else hours.turn(utc_s)
    return [*take_requests(folder), *(NodeRequest(each.kind, each.node, each.why) for each in by_clock)]


def put_request(folder: Path, request: Request) -> None:
    """Leave a request in a run's folder. Raises InvalidInput where that is not possible."""
    name = f".request-{time.time_ns():020d}-{os.getpid()}.json"
    try:
        if sum(1 for _ in folder.glob(REQUESTS)) >= MOST_WAITING:
            raise InvalidInput(f"{MOST_WAITING} requests wait already: nobody takes them", path=str(folder))
        said: dict[str, str] = {"kind": request.kind}
        if isinstance(request, NodeRequest):
            said["node"] = request.node
            if request.fleet is not None:
                save_fleet(request.fleet, _fleet_of(folder / name))
        whole = folder / f"{name}.part"
        whole.write_text(json.dumps(said), encoding="utf-8")
        whole.rename(folder / name)
    except OSError as error:
        raise InvalidInput(f"cannot be written: {error.strerror or error}", path=str(folder / name)) from None


def take_requests(
    folder: Path, kinds: Collection[str] = _EVERY, *, nodes: Collection[str] | None = None
) -> list[Request]:
    """Take the requests of a run's folder that are of these kinds, the oldest first. They are gone then.

    `nodes`: of those about a node, take only what is asked of one of these; None: of any.
    """
    found: list[Request] = []

    def is_asked(request: Request) -> bool:
        elsewhere = isinstance(request, NodeRequest) and nodes is not None and request.node not in nodes
        return request.kind in kinds and not elsewhere

    for path in sorted(folder.glob(REQUESTS)):
        try:
            request = _parsed(path.read_bytes()[:_MOST_BYTES])
            if request is None or is_asked(request):
                if isinstance(request, NodeRequest):
                    request = replace(request, fleet=_taken_fleet(_fleet_of(path)))
                path.unlink()
        except OSError:
            continue  # it is tried again
        if request is not None and is_asked(request):
            found.append(request)
    return found


def _fleet_of(request: Path) -> Path:
    """Where the fleet of a request lies. It is there before the request is."""
    return request.with_name(f"{request.name}.nodes.yaml")


def _taken_fleet(path: Path) -> Fleet | None:
    """The fleet of a request, which is gone then; None where there is none, or none that can be read."""
    if not path.exists():
        return None
    try:
        return load_fleet(path)
    except InvalidInput:
        return None
    finally:
        path.unlink()


def _parsed(text: bytes) -> Request | None:
    try:
        content = json.loads(text)
        kind = content["kind"]
        if kind in get_args(RunKind):
            return RunRequest(kind)
        node = content["node"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return NodeRequest(kind, node) if kind in get_args(Kind) and isinstance(node, str) else None
