"""The nodes of clusters that were found to lie, in a file of the run's folder: whoever drives the run next knows them.

In: the nodes that have left the run. Out: shut-out.json, which says of each that was shut out why. A node stays out
until `ravnest join` lets it in again, or its line is removed from the file.
"""

import json
from collections.abc import Callable
from pathlib import Path

from cluster_planner import NoFeasiblePlan, Plan
from ravnest.errors import InvalidInput
from ravnest.recovery import NodesLeft, plan_among

_MOST_BYTES = 16 << 20


def read_shut_out(path: Path) -> dict[str, str]:
    """Why each node was shut out, by its name; nothing where there is no file. Raises InvalidInput for another one."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_MOST_BYTES))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise InvalidInput(f"cannot be read ({error.strerror or error})", path=str(path)) from None
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"is no JSON: {error}", path=str(path)) from None
    if not isinstance(found, dict) or not all(isinstance(reason, str) for reason in found.values()):
        raise InvalidInput("is no list of nodes that are shut out, each with the reason", path=str(path))
    return found


class ShutOutFile:
    """Keeps the file as the nodes are that have left a run."""

    def __init__(self, path: Path, left: NodesLeft, tell: Callable[[str], None]) -> None:
        """`tell` is told, in a sentence, where the disk refuses the file."""
        self._path = path
        self._left = left
        self._tell = tell
        self._written = dict(left.liars)

    def keep(self) -> None:
        """Write the file where anybody was shut out or let in again since the last call."""
        now = dict(self._left.liars)
        if now == self._written:
            return
        self._written = now
        beside = self._path.with_name(self._path.name + ".new")
        try:
            beside.write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")
            beside.replace(self._path)
        except OSError as error:
            self._tell(f"{self._path} cannot be written ({error.strerror or error}): a resume would let liars in again")


def plan_without(plan: Plan, left: NodesLeft, path: Path) -> Plan:
    """The plan where no node of it was shut out, else one for the others. Raises InvalidInput where there is none."""
    liars = left.liars.keys() & set(plan.fleet.names)
    if not liars:
        return plan
    try:
        return plan_among(plan, set(plan.fleet.names) - liars)
    except NoFeasiblePlan as error:
        raise InvalidInput(
            f"{', '.join(sorted(liars))} were shut out, and without them: {error}",
            path=str(path),
            hint="remove the lines of nodes that may take part again",
        ) from None
