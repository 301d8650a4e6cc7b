"""What is said of an option's value that cannot be: one line, as of anything else that the user can mend."""

from __future__ import annotations

import typer

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
