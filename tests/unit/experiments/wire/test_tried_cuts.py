import pytest

from experiments.wire.tried_cuts import PAIRS


@pytest.mark.parametrize(
    ("pair", "ratio"), [("float32", 1.0), ("int4, int4", 7.53), ("int4, sign", 11.6), ("sign, sign", 25.6)]
)
def test_bytes_both_ways_count(pair, ratio):
    assert PAIRS[pair].ratio == pytest.approx(ratio, rel=0.01)


def test_what_is_fed_back_belongs_to_one_cut():
    first, second = (PAIRS["int4, an eighth fed back"].gradients(0) for _ in range(2))
    assert first.passes is not second.passes
