"""Each field of each message of a run is bounded where it is decoded."""

import math

import pytest
from hypothesis import given

from ravnest.stage import messages as m
from ravnest.stage.message_fields import require_no_negative
from ring_allreduce import InvalidMessage
from ring_allreduce.transport import MOST_COUNT, Unacceptable
from tests.support.wire import mutations, unbounded

DIVERGED = {
    "GlobalNorm.norm_sq",
    "Gradient.norm_sq",
    "Updated.losses",
    "EvaluationFinished.loss",
    "EvaluationFinished.metrics",
}
"""What may be infinite or NaN where training diverges. Who uses it says so."""


@pytest.mark.parametrize("kind", m.KINDS, ids=lambda kind: kind.__name__)
def test_each_field_has_bounds(kind):
    assert unbounded(kind, DIVERGED) == []


def test_what_no_codec_knows_never_travels():
    assert Unacceptable not in m.KINDS


EXAMPLES = [
    m.Gradient(micro_batch=3, norm_sq=1.0),
    m.GlobalNorm(update=1, norm_sq=2.0),
    m.Updated(update=1, staleness=(0, 1), losses=(0.5, 0.25), lr=0.1, spent={"forward": 1.0}),
    m.Spans(lanes=(0,), kinds=("forward",), numbers=(-1,), began_s=(0.0,), ended_s=(1.0,), dropped=0),
]


@given(mutations(EXAMPLES))
def test_extreme_values_are_refused_or_within_the_bounds(message):
    codec = m.codec()
    try:
        decoded = codec.decode(codec.encode(message))
    except InvalidMessage:
        return
    for field in decoded.__struct_fields__:
        value = getattr(decoded, field)
        for each in value if isinstance(value, tuple) else [value]:
            if isinstance(each, int | float):
                free = f"{type(decoded).__name__}.{field}" in DIVERGED
                assert free or (math.isfinite(each) and abs(each) <= (1e30 if isinstance(each, float) else MOST_COUNT))


@pytest.mark.parametrize("norm_sq", [None, 0.0, 1e300, math.inf, math.nan])
def test_norms_of_a_run_that_diverges_pass(norm_sq):
    require_no_negative(norm_sq)


def test_a_negative_norm_does_not():
    with pytest.raises(ValueError, match="a squared norm of -1"):
        require_no_negative(-1.0)
