import math

import pytest
from pydantic import TypeAdapter, ValidationError

from ravnest.job_sections import Fraction, NonNegativeInt, PositiveFloat, PositiveInt


@pytest.mark.parametrize(
    ("kind", "given", "read"),
    [
        (PositiveInt, 3, 3),
        (PositiveInt, 3.0, 3),
        (PositiveInt, "2e5", 200_000),
        (NonNegativeInt, 0, 0),
        (PositiveFloat, 1, 1.0),
        (PositiveFloat, "1e-3", 1e-3),
        (Fraction, 0, 0.0),
        (Fraction, 1, 1.0),
    ],
)
def test_read(kind, given, read):
    value = TypeAdapter(kind).validate_python(given)
    assert value == read
    assert type(value) is type(read)


@pytest.mark.parametrize("kind", [PositiveInt, NonNegativeInt, PositiveFloat, Fraction])
@pytest.mark.parametrize("given", [-1, True, None, math.nan, math.inf, "nan", "inf", "x", [1]])
def test_refused(kind, given):
    with pytest.raises(ValidationError):
        TypeAdapter(kind).validate_python(given)


@pytest.mark.parametrize(("kind", "given"), [(PositiveInt, 0), (PositiveInt, 1.5), (PositiveFloat, 0), (Fraction, 1.1)])
def test_limits(kind, given):
    with pytest.raises(ValidationError):
        TypeAdapter(kind).validate_python(given)
