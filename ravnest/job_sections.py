"""The numbers a user's job file may hold, and the base of its sections.

Decides what counts as a number: `1e-3` (which YAML reads as text) is one, `true`, NaN and infinity are not, and
`2e5` is a whole number. Knows nothing of what the numbers mean.
"""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

MOST = 2**62
"""More samples, updates or seeds than that are a slip of the pen."""


def _number(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("expected a number, not true or false")
    return value


def _whole(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("expected a whole number, not true or false")
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return value
    return int(value) if isinstance(value, float) and value.is_integer() else value


PositiveFloat = Annotated[float, BeforeValidator(_number), Field(gt=0, allow_inf_nan=False)]
Fraction = Annotated[float, BeforeValidator(_number), Field(ge=0, le=1, allow_inf_nan=False)]
FractionBelowOne = Annotated[float, BeforeValidator(_number), Field(ge=0, lt=1, allow_inf_nan=False)]
PositiveInt = Annotated[int, BeforeValidator(_whole), Field(gt=0, le=MOST)]
NonNegativeInt = Annotated[int, BeforeValidator(_whole), Field(ge=0, le=MOST)]


class Section(BaseModel):
    """A part of the job file: it cannot be changed once read, and has no keys but its own."""

    model_config = ConfigDict(frozen=True, extra="forbid")
