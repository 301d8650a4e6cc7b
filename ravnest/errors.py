"""The errors a user of ravnest can meet, as one tree.

    RavnestError                 base: catch this one
    ├── InvalidInput             a file, key or argument the user can mend (exit code 2)
    │   └── ModelNotSplittable   a model that cannot be captured, cut or reproduced exactly
    ├── Interrupted              stopped by the user before there was anything to save (exit code 130)
    └── RunFailed                a run that began and could not go on (exit code 1)
        └── NodeLost             a stage's process or machine died, or stayed silent past its deadline

Each message is one line that names what was wrong, where, and what was expected.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class RavnestError(Exception):
    """Base of every error that ravnest raises on purpose."""

    exit_code = 1


class InvalidInput(RavnestError):
    """The user's input is wrong. `path` and `key` say where; `message` says what was expected."""

    exit_code = 2

    def __init__(self, message: str, *, path: str | None = None, key: str | None = None) -> None:
        self.message = message
        self.path = path
        self.key = key
        where = ": ".join(part for part in (path, key) if part)
        super().__init__(f"{where}: {message}" if where else message)


class ModelNotSplittable(InvalidInput):
    """The model cannot be exported, cut, or reproduced exactly by its stages."""


class Interrupted(RavnestError):
    """The user stopped a run that had nothing to save yet."""

    exit_code = 130


@contextmanager
def naming(path: object, key: str | None = None) -> Iterator[None]:
    """Adds the file, and `key` where none is known, to an InvalidInput raised inside that names no file."""
    try:
        yield
    except InvalidInput as error:
        if error.path is not None:
            raise
        raise type(error)(error.message, path=str(path), key=error.key or key) from error


class RunFailed(RavnestError):
    """A run that had begun could not go on."""


class NodeLost(RunFailed):
    """A stage died, or was silent for longer than its deadline. The message names it."""
