"""Unequal blocks: against brute force, never worse than equal ones, and counted as the ring machine passes them."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from ravnest_errors import InvalidInput
from ring_timing.shares import (
    LEAST_GAIN,
    fastest_s,
    hop_bytes,
    hops_from_links,
    round_s,
    shares_from_hops,
)

RATES = st.one_of(st.floats(1e3, 1e9), st.sampled_from([1e6, 2e6, 1e7, math.inf]))


def passes_as_the_ring_does(n, blocks):
    """Bytes over each hop, walking each block around: n − 1 hops from its start, then n − 1 from where it is whole."""
    carried = [0.0] * n
    for block, size in enumerate(blocks):
        for step in range(n - 1):
            carried[(block + step) % n] += size
            carried[(block - 1 + step) % n] += size
    return carried


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=7))
def test_bytes_are_those_of_walking_each_block_around(blocks):
    total = sum(blocks) or 1.0
    shares = [block / total for block in blocks] if sum(blocks) else [1 / len(blocks)] * len(blocks)
    assert hop_bytes(1.0, len(shares), shares) == pytest.approx(passes_as_the_ring_does(len(shares), shares))


@settings(max_examples=100, deadline=None)
@given(st.lists(RATES, min_size=1, max_size=9))
def test_never_worse_than_equal_blocks_and_better_by_the_least_gain(rates):
    shares = shares_from_hops(rates)
    if shares is None:
        return
    assert len(shares) == len(rates)
    assert min(shares) >= 0
    assert sum(shares) == pytest.approx(1.0, abs=1e-12)
    assert round_s(1.0, rates, shares) <= (1 - LEAST_GAIN + 1e-4) * round_s(1.0, rates)


def solved(rates):
    """The least T of b_{i+1} + b_{i+2} + T·rate_i >= 2 for every hop with a limit, by a solver."""
    n = len(rates)
    hops = [i for i in range(n) if math.isfinite(rates[i])]
    rows = np.zeros((len(hops), n + 1))
    for row, i in enumerate(hops):
        rows[row, [(i + 1) % n, (i + 2) % n, n]] = -1.0, -1.0, -rates[i]
    everyone = np.array([[1.0] * n + [0.0]])
    return linprog([0.0] * n + [1.0], rows, [-2.0] * len(hops), everyone, [1.0], method="highs").x[-1]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(st.floats(1.0, 100.0), st.sampled_from([1.0, 2.0, math.inf])), min_size=3, max_size=11))
def test_the_fastest_round_is_what_a_solver_finds(rates):
    assert fastest_s(tuple(rates)) == pytest.approx(solved(rates) if min(rates) < math.inf else 0.0, rel=1e-6)


def grid(n, steps):
    """Every division of the vector among n blocks in units of 1/steps."""
    for bars in itertools.combinations(range(steps + n - 1), n - 1):
        edges = (-1, *bars, steps + n - 1)
        yield [(b - a - 1) / steps for a, b in itertools.pairwise(edges)]


@settings(max_examples=40, deadline=None)
@given(st.lists(RATES, min_size=3, max_size=5))
def test_no_division_on_a_grid_is_faster(rates):
    shares = shares_from_hops(rates)
    mine = round_s(1.0, rates, shares)
    best = min(round_s(1.0, rates, blocks) for blocks in grid(len(rates), 12))
    assert mine <= best / (1 - LEAST_GAIN) * (1 + 1e-5)
    if shares is not None:
        assert mine <= best * (1 + 1e-5)


def test_the_same_rates_give_the_same_shares():
    rates = [3e6, 1e6, 5e6, 4e6, 9e6]
    assert shares_from_hops(rates) == shares_from_hops(tuple(rates))
    assert shares_from_hops(rates) == pytest.approx(shares_from_hops([1000 * rate for rate in rates]))


@pytest.mark.parametrize("rates", [[1e6], [1e6, 1e9], [1e6] * 5, [math.inf] * 4, [1e6, 1.01e6, 1e6, 1e6]])
def test_equal_blocks_where_nothing_is_gained(rates):
    assert shares_from_hops(rates) is None


def test_two_members_carry_the_whole_vector_each_way_however_it_is_divided():
    assert hop_bytes(8.0, 2, [0.75, 0.25]) == hop_bytes(8.0, 2) == (8.0, 8.0)
    assert hop_bytes(8.0, 1) == (0.0,)


def test_one_slow_member_takes_in_and_gives_out_the_vector_once():
    # Member 0 of five: hops 4 → 0 and 0 → 1. All is completed there, by block 1.
    shares = shares_from_hops([1e6, 1e7, 1e7, 1e7, 1e6])
    assert shares == pytest.approx([0, 1, 0, 0, 0], abs=1e-4)
    assert round_s(1e6, [1e6, 1e7, 1e7, 1e7, 1e6], shares) == pytest.approx(1.0, rel=1e-4)
    assert round_s(1e6, [1e6, 1e7, 1e7, 1e7, 1e6]) == pytest.approx(1.6)


def test_a_slow_uplink_alone_is_relieved_by_two_blocks_alike():
    shares = shares_from_hops([1e6, 1e7, 1e7, 1e7])
    assert shares == pytest.approx([0, 0.5, 0.5, 0], abs=1e-4)


def test_slow_members_do_best_side_by_side():
    fast, slow = 1e7, 1e6

    def seconds(speeds):
        hops = hops_from_links(speeds, speeds)
        return round_s(1e6, hops, shares_from_hops(hops))

    together, apart = [slow] * 3 + [fast] * 5, [slow, fast, fast, slow, fast, fast, slow, fast]
    assert seconds(together) == pytest.approx(1.5, rel=1e-4)
    assert seconds(apart) == pytest.approx(2 - 1 / 3, rel=1e-4)


def test_a_hop_is_as_fast_as_the_slower_of_its_ends():
    assert hops_from_links([1.0, 2.0, 3.0], [9.0, 0.5, 4.0]) == (0.5, 2.0, 3.0)
    with pytest.raises(InvalidInput, match="3 uplinks and 1 downlinks"):
        hops_from_links([1.0, 2.0, 3.0], [9.0])


@pytest.mark.parametrize("rates", [[], [1e6, 0.0, 1e6], [1e6, -1.0, 1e6], [1e6, math.nan, 1e6]])
def test_refuses_what_is_no_rate(rates):
    with pytest.raises(InvalidInput, match="rate above 0"):
        shares_from_hops(rates)
