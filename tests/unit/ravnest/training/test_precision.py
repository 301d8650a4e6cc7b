import pytest

from cluster_planner.advice.shorter_forms import RATIOS
from ravnest.errors import RunFailed
from ravnest.training.precision import (
    FIRST_SCALE,
    GROW_AFTER,
    LARGEST_SCALE,
    SMALLEST_SCALE,
    LossScale,
    bytes_per_float32_byte,
)


def test_the_planner_counts_the_forms_that_it_suggests_as_they_travel() -> None:
    assert {form: bytes_per_float32_byte(form) for form in ("int8", "int4")} == RATIOS


def test_a_scale_halves_at_an_overflow_and_doubles_after_a_long_time_without() -> None:
    scale = LossScale()
    scale.overflowed()
    assert (scale.value, scale.overflows) == (FIRST_SCALE / 2, 1)
    for _ in range(GROW_AFTER - 1):
        scale.was_fine()
    assert scale.value == FIRST_SCALE / 2
    scale.was_fine()
    assert scale.value == FIRST_SCALE
    scale.was_fine()
    scale.overflowed()
    for _ in range(GROW_AFTER - 1):
        scale.was_fine()
    assert scale.value == FIRST_SCALE / 2  # an overflow begins the count anew


def test_it_has_bounds() -> None:
    scale = LossScale(LARGEST_SCALE)
    for _ in range(GROW_AFTER):
        scale.was_fine()
    assert scale.value == LARGEST_SCALE
    scale = LossScale(2 * SMALLEST_SCALE)
    scale.overflowed()
    with pytest.raises(RunFailed, match="not finite at any scale"):
        scale.overflowed()
