"""What the commands say on standard error, and how a mistake in an option reads.

In: typer's complaints, and errors that name an argument of the Python door. Out: an InvalidInput that names the option.
"""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand

from ravnest.errors import InvalidInput

_EXPECTED = {
    "greater_than_equal": "expected {ge:.10g} or more",
    "less_than_equal": "expected {le:.10g} or less",
    "float_parsing": "expected a number",
    "int_parsing": "expected a whole number",
    "int_from_float": "expected a whole number",
}


def as_invalid_input(error: typer.BadParameter) -> InvalidInput:
    """typer's complaint of a value, which is pydantic's, in ravnest's words."""
    from pydantic import ValidationError

    message, cause = error.message, error.__cause__ or error.__context__
    if isinstance(cause, ValidationError):
        (detail, *_) = cause.errors(include_url=False)
        expected = _EXPECTED.get(detail["type"])
        if expected is not None:
            message = f"{expected.format(**detail.get('ctx', {}))}, not {detail['input']}"
    names = [] if error.param is None else [*error.param.opts, *([error.param.name] if error.param.name else [])]
    return InvalidInput(message.removeprefix("Value error, "), key=next((n for n in names if n.startswith("--")), None))


class Command(TyperCommand):
    """A command that names its option where an error is about an argument of the Python door."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except InvalidInput as error:
            for param in self.params:
                option = next((one for one in param.opts if one.startswith("--")), None)
                # An error about a file is about an option only where the option names that file.
                if option and error.key == param.name and error.path in (None, str(ctx.params[param.name])):
                    raise InvalidInput(error.message, path=error.path, key=option, hint=error.hint) from error
            raise


def note(said: str) -> None:
    """Tells on standard error what the user should know."""
    typer.echo(f"note: {said}", err=True)


def warning(said: str) -> None:
    """Tells on standard error what is possible and hardly meant."""
    typer.echo(f"ravnest: warning: {said}", err=True)
