"""The base of all errors that ravnest, cluster_planner and ring_allreduce raise on purpose.

It stands beside the three packages because the two lower ones do not import ravnest, and because one `except` clause
must catch what any of them raises. Each package adds its own errors in its module `errors`. The usual import is
`from ravnest.errors import InvalidInput`, or the like from the package that one uses.
"""

from collections.abc import Sequence
from typing import Self


class RavnestError(Exception):
    """The base of every error that is raised on purpose. `exit_code` is what the command line ends with."""

    exit_code = 1

    hint: str | None = None
    """What the user can do about it, as one sentence; None where the message says all."""


class InvalidInput(RavnestError):
    """Something that the user wrote or asked for is wrong and can be mended.

    Arguments:
        message: what was found and what was expected, on one line.
        path: the file that holds the mistake, or None.
        key: the key in that file, or the name of the argument, or None.
        hint: what to do about it, as one sentence, or None.
    """

    exit_code = 2

    def __init__(
        self, message: str, *, path: str | None = None, key: str | None = None, hint: str | None = None
    ) -> None:
        self.message = message
        self.path = path
        self.key = key
        self.hint = hint
        super().__init__(_line(path, key, message))
        if hint is not None:
            self.add_note(f"hint: {hint}")  # a traceback and a notebook show it below the message

    @classmethod
    def several(cls, problems: Sequence[tuple[str | None, str]], *, path: str | None = None) -> Self:
        """Return one error for several mistakes in one file.

        Each problem is a pair of key and message and becomes one line of the text. `key` and `message` of the error are
        those of the first problem.
        """
        first_key, first_message = problems[0]
        error = cls(first_message, path=path, key=first_key)
        error.args = ("\n".join(_line(path, key, message) for key, message in problems),)
        return error

    def located(self, path: str, key: str | None = None) -> Self:
        """Return the same error with a file, and with `key` where it had none. An error that names a file is
        unchanged.
        """
        if self.path is not None:
            return self
        return type(self)(self.message, path=path, key=self.key or key, hint=self.hint)


def _line(path: str | None, key: str | None, message: str) -> str:
    return ": ".join(part for part in (path, key, message) if part)
