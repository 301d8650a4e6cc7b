import math

import pytest

from experiments.wire.forms import FORMS, RATIOS, higher, is_within, part_of

LOSSES = {
    "a": {"float32": [1.0, 2.0], "bfloat16": [1.0, 2.0], "int8": [1.01, 2.0], "int4": [1.2, 2.2]},
    "b": {"float32": [3.0, 3.0], "bfloat16": [2.9, 3.0], "int8": [3.0, 3.0], "int4": [3.0, 3.0]},
}


def test_pairs_of_one_seed_are_compared_and_the_interval_covers_the_mean_of_few():
    found = higher([1.1, 2.1, 3.9], [1.0, 2.0, 4.0])
    assert found.mean == pytest.approx((0.1 + 0.05 - 0.025) / 3)
    assert found.half == pytest.approx(4.303 * 0.0629 / math.sqrt(3), rel=0.01)  # Student's t of two degrees
    assert math.isnan(higher([1.1], [1.0]).half)


def test_a_form_is_within_only_where_every_task_is():
    assert [is_within(form, LOSSES, 0.01) for form in FORMS] == [True, True, True, False]
    assert RATIOS["float32"] == 1.0
    assert RATIOS["int4"] > 7.5


@pytest.mark.parametrize(("least", "held"), [(3.9, True), (7.0, False)])
def test_the_claim_is_of_the_shortest_form_that_is_within(least, held):
    part = part_of("p", "P", LOSSES, most=0.01, least_ratio=least, notes=[])
    claims = {claim.name: claim for claim in part.claims}
    assert claims["bytes"].held is held
    assert claims["bytes"].measured.startswith("int8: 3.9 times fewer")
    assert (claims["int8"].held, claims["int4"].held) == (True, False)
    assert len(part.tables[0].rows) == 8
