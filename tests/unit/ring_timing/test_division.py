"""Who exchanges directly, when blocks are unequal, and what a round takes."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ravnest_errors import InvalidInput
from ring_timing.division import (
    WALKED_FROM,
    Division,
    RingLinks,
    direct_is_faster,
    divide,
    ring_round,
    shares_that_pay,
)
from ring_timing.layout import chunk_elements_for
from ring_timing.shares import round_s, shares_from_hops


def test_a_direct_exchange_is_for_two_and_for_small_vectors():
    assert direct_is_faster(1 << 30, 2)
    assert direct_is_faster(512 << 10, 3)
    assert not direct_is_faster(4 << 20, 3)
    # 20 Mbit/s and 50 ms: 150 kB are 0.06 s, so five saved latencies are worth more than 1.5 more vectors.
    assert direct_is_faster(150_000, 4, 0.05, 2.5e6)
    assert not direct_is_faster(500_000, 4, 0.05, 2.5e6)


@pytest.mark.parametrize("wrong", [(-1, 2), (1, 0), (1, 3, -1.0), (1, 3, 0.1, 0.0), (1, 3, float("nan"))])
def test_refuses_impossible_exchanges(wrong):
    with pytest.raises(InvalidInput):
        direct_is_faster(*wrong)


def test_blocks_stay_equal_where_a_round_is_bound_by_the_way_around():
    hops = [1e6, 1e7, 1e7, 1e7, 1e6]
    near, far = [0.0] * 5, [1.0] * 5
    assert shares_that_pay(1e8, 1e4, hops, near) == shares_from_hops(hops)
    assert shares_that_pay(1e5, 1e5, hops, far) is None  # one large block would only be longer on each hop
    assert shares_that_pay(1e8, 1e4, [1e7] * 5, near) is None


def links(rates, latency_s=0.0, slowest_pair=None, longest_s=None):
    pairs = min(rates) if slowest_pair is None else slowest_pair, latency_s if longest_s is None else longest_s
    return RingLinks(tuple(rates), (latency_s,) * len(rates), *pairs)


def test_a_lone_member_has_nothing_to_divide():
    division = divide(1000, 4, RingLinks())
    assert (division.direct, division.shares) == (True, None)


def test_a_large_vector_goes_around_in_shares_and_a_small_one_directly():
    ring = links([1e6, 1e7, 1e7, 1e7, 1e6], 0.001)
    large = divide(25_000_000, 4, ring)
    assert large == Division(False, chunk_elements_for(1e6, 4, 10**8), shares_from_hops(ring.hop_bytes_per_s))
    assert large.shares is not None
    assert divide(10, 4, ring).direct


def test_where_each_part_has_to_be_seen_a_large_vector_goes_directly_too():
    division = divide(25_000_000, 4, links([1e6, 1e7, 1e7, 1e7, 1e6], 0.001), each=True)
    assert division == Division(True, chunk_elements_for(1e6, 4, 10**8), None)


def test_a_slow_pair_that_is_no_hop_speaks_against_direct_exchange():
    rates = [1e7] * 4
    assert divide(25_000, 4, links(rates, 0.02)).direct
    assert not divide(25_000, 4, links(rates, 0.02, slowest_pair=1e5)).direct


def test_scales_beside_the_numbers_count_as_bytes_of_the_vector_only():
    ring = links([1e6] * 3)
    assert divide(10**7, 1 + 4 / 256, ring).chunk_elements == chunk_elements_for(1e6, 1, int(10**7 * (1 + 4 / 256)))


RATES = st.floats(1e4, 1e9)


@settings(max_examples=60, deadline=None)
@given(
    st.one_of(st.lists(RATES, min_size=3, max_size=9), st.lists(RATES, min_size=WALKED_FROM, max_size=24)),
    st.floats(0.0, 1.0),
    st.floats(1e3, 1e9),
    st.floats(1e2, 1e7),
)
def test_unequal_blocks_always_pay(rates, latency_s, vector_bytes, chunk_bytes):
    hops = rates, [latency_s] * len(rates)
    shares = shares_that_pay(vector_bytes, chunk_bytes, *hops)
    taken = [ring_round(vector_bytes, chunk_bytes, blocks, *hops) for blocks in (None, shares, shares_from_hops(rates))]
    equal, chosen, unequal = (once.takes_s for once in taken)
    assert chosen == min(equal, unequal)
    assert taken[1].sending_s == pytest.approx(round_s(vector_bytes, rates, shares))


def test_a_round_without_limits_takes_its_latencies():
    once = ring_round(1e6, 1e4, None, [math.inf] * 4, [0.1] * 4)
    assert once.sending_s == 0.0
    assert once.way_s == pytest.approx(6 * 0.1)


def test_in_a_large_ring_hops_wait_for_large_blocks_and_in_equal_blocks_for_nothing():
    """Two hops in a row are slow, so one block is large; all others wait for it to come around."""
    rates = [1e6, 1e6, *[1e7] * (WALKED_FROM - 2)]
    shares = shares_from_hops(rates)
    given = 1e8, 1e4, shares, rates, [0.01] * WALKED_FROM
    once = ring_round(*given)
    assert once.stalls_s > 0.01
    assert once.takes_s == once.sending_s + once.stalls_s
    assert ring_round(*given[:2], None, *given[3:]).stalls_s == 0
    equal = ring_round(*given[:2], [1 / WALKED_FROM] * WALKED_FROM, *given[3:])
    assert equal.sending_s <= equal.takes_s < 1.02 * equal.sending_s
    assert ring_round(1e8, 1e4, shares[:-1], rates[:-1], [0.01] * (WALKED_FROM - 1)).stalls_s == 0


def test_nobody_waits_longer_than_for_blocks_that_go_around_one_after_another():
    rates = [1e6 * (1 + 3 * (i % 5)) for i in range(40)]
    once = ring_round(1e8, 1e5, shares_from_hops(rates), rates, [0.02] * 40)
    largest = max(shares_from_hops(rates)) * 1e8
    assert 0.02 <= once.stalls_s <= 2 * 39 * (largest / min(rates) + 0.02)
