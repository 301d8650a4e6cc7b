"""The errors that a user of ravnest can meet, as one tree.

    RavnestError                 the base of every error that is raised on purpose
    ├── InvalidInput             a file, key or argument that the user can mend (exit code 2)
    │   ├── NodeNotThere         a node of the plan that the Ray cluster does not have
    │   ├── ModelNotSplittable   a model that cannot be captured, cut or reproduced exactly
    │   └── NoFeasiblePlan       a fleet that cannot run the model (cluster_planner)
    ├── Interrupted              the user stopped a run that had nothing to save yet (exit code 130)
    ├── RunFailed                a run that began and could not go on (exit code 1)
    │   ├── NodeLost             a stage's process or machine died, or stayed silent past its deadline
    │   ├── WrongMessage         a stage said what no stage says then, which costs its cluster
    │   └── NotWritten           the disk refused a file: it is full, gone, or may not be written
    ├── TableUnreachable         no peer of a hash table answered (exit code 1)
    ├── ExpertsUnavailable       too few experts answered a layer that calls them (exit code 1)
    └── TransportError, …        errors of ring_allreduce; a run reports them as RunFailed

Each message is one line that names what was wrong, where it was, and what was expected. `hint` says what to do.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from ravnest_errors import InvalidInput, RavnestError

__all__ = [
    "ExpertsUnavailable",
    "Interrupted",
    "InvalidInput",
    "ModelNotSplittable",
    "NodeLost",
    "NodeNotThere",
    "NotWritten",
    "RavnestError",
    "RunFailed",
    "TableUnreachable",
    "WrongMessage",
    "naming",
]


class ModelNotSplittable(InvalidInput):
    """The model cannot be exported, cut, or reproduced exactly by its stages."""


class NodeNotThere(InvalidInput):
    """A node of the plan is not in the Ray cluster. The message names it."""


class Interrupted(RavnestError):
    """The user stopped a run that had nothing to save yet."""

    exit_code = 130


class RunFailed(RavnestError):
    """A run that had begun could not go on."""


class NodeLost(RunFailed):
    """A stage died, or was silent for longer than its deadline. The message names the stage and its node."""

    def __init__(self, message: str, stage: str = "") -> None:
        """`stage`: which one it was, of one run's; empty where nobody knows."""
        super().__init__(message)
        self.stage = stage


class WrongMessage(RunFailed):
    """A stage said what no stage says then. The message names the stage, which is `stage`."""

    def __init__(self, stage: str, what: str) -> None:
        """`what`: what it did, as the end of a sentence."""
        super().__init__(f"{stage} {what}")
        self.stage = stage


class NotWritten(RunFailed):
    """The disk refused a file or a folder. The message names it and the reason."""


class TableUnreachable(RavnestError):
    """No peer through which a hash table was to be joined has answered. The message names them."""


class ExpertsUnavailable(RavnestError):
    """Too few experts can be called, or answered in time. The message says how many."""


@contextmanager
def naming(path: object, key: str | None = None) -> Iterator[None]:
    """Adds the file `path` to an InvalidInput that is raised inside the `with` block and names no file.

    Where it names no key either, `key` is added too.
    """
    try:
        yield
    except InvalidInput as error:
        located = error.located(str(path), key)
        if located is error:
            raise
        raise located from error
