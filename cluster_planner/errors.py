"""The errors of the planner, as one tree.

    PlannerError                 base: catch this one
    └── InvalidInput             a file, key or argument the user can mend (exit code 2)
        └── NoFeasiblePlan       a sound fleet and a sound model that do not fit each other

Each line of a message names the file and the key where they are known, then what was expected.
"""

from collections.abc import Sequence
from typing import Self


class PlannerError(Exception):
    """Base of every error that cluster_planner raises on purpose."""

    exit_code = 1


class InvalidInput(PlannerError):
    """The user's input is wrong. `path` and `key` say where; `message` says what was expected."""

    exit_code = 2

    def __init__(self, message: str, *, path: str | None = None, key: str | None = None) -> None:
        self.path = path
        self.key = key
        self.message = message
        super().__init__(_line(path, key, message))

    @classmethod
    def several(cls, problems: Sequence[tuple[str | None, str]], *, path: str | None = None) -> Self:
        """One error for several `(key, message)` problems of a file: one line each, `key` is the first one's."""
        first_key, first_message = problems[0]
        error = cls(first_message, path=path, key=first_key)
        error.args = ("\n".join(_line(path, key, message) for key, message in problems),)
        return error


class NoFeasiblePlan(InvalidInput):
    """The fleet cannot hold or run the model under the workload. The message says what is lacking."""


def _line(path: str | None, key: str | None, message: str) -> str:
    return ": ".join(part for part in (path, key, message) if part)
