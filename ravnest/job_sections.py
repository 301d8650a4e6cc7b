"""The base of the sections of a job file, and the types of numbers in them.

In: values as YAML gives them. Out: checked numbers. `1e-3`, which YAML reads as text, is a number; `true`, NaN and
infinity are not; `2e5` is a whole number.
"""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

MOST = 2**62
"""A larger number of samples, updates or seeds is taken for a mistake."""


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
NonNegativeFloat = Annotated[float, BeforeValidator(_number), Field(ge=0, allow_inf_nan=False)]
Integer = Annotated[int, BeforeValidator(_whole), Field(ge=-MOST, le=MOST)]
PositiveInt = Annotated[int, BeforeValidator(_whole), Field(gt=0, le=MOST)]
NonNegativeInt = Annotated[int, BeforeValidator(_whole), Field(ge=0, le=MOST)]


class Section(BaseModel):
    """A section of the job file. It cannot be changed once it is read, and unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")
