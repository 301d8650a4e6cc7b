"""How a vector is divided: the edge grid (nothing, fewer elements than members, a lone member), and the grid's laws."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ravnest_errors import InvalidInput
from ring_timing.layout import (
    CHUNK_GRAIN,
    CHUNK_SECONDS,
    HANDLING_S,
    LEAST_CHUNK_BYTES,
    MOST_CHUNK_BYTES,
    MOST_CHUNK_BYTES_UNKNOWN,
    Layout,
    chunk_elements_for,
)


@pytest.mark.parametrize(
    ("elements", "members", "chunk", "expected"),
    [
        (0, 1, 4, [[(0, 0)]]),
        (0, 3, 4, [[(0, 0)], [(0, 0)], [(0, 0)]]),
        (2, 3, 4, [[(0, 1)], [(1, 2)], [(2, 2)]]),
        (10, 1, 4, [[(0, 4), (4, 8), (8, 10)]]),
        (10, 3, 2, [[(0, 2), (2, 4)], [(4, 6), (6, 7)], [(7, 9), (9, 10)]]),
        (8, 2, 4, [[(0, 4)], [(4, 8)]]),
        (2**33 + 1, 2, 2**32, [[(0, 2**32), (2**32, 2**32 + 1)], [(2**32 + 1, 2**33 + 1)]]),
    ],
)
def test_edge_grid(elements, members, chunk, expected):
    layout = Layout(elements, members, chunk)
    assert [layout.chunks(block) for block in range(members)] == expected
    assert layout.chunk_count() == sum(map(len, expected))


@given(st.integers(0, 500), st.integers(1, 9), st.integers(1, 60))
def test_chunks_cover_the_vector_once_and_in_order(elements, members, chunk):
    layout = Layout(elements, members, chunk)
    spans = [span for block in range(members) for span in layout.chunks(block)]
    assert [i for start, stop in spans for i in range(start, stop)] == list(range(elements))
    assert all(stop - start <= chunk for start, stop in spans)
    sizes = [stop - start for start, stop in map(layout.block, range(members))]
    assert max(sizes) - min(sizes) <= 1
    assert layout.chunk_count() == len(spans)


@pytest.mark.parametrize(
    ("shares", "edges"),
    [
        ((0.5, 0.25, 0.25), (0, 5, 8, 10)),
        ((0.0, 1.0, 0.0), (0, 0, 10, 10)),
        ((0.0, 0.0, 1.0), (0, 0, 0, 10)),
        ((0.1, 0.2, 0.7), (0, 1, 3, 10)),
        ((1 / 3, 1 / 3, 1 / 3), (0, 3, 7, 10)),
    ],
)
def test_unequal_blocks(shares, edges):
    layout = Layout(10, 3, 2, shares)
    assert layout.edges == edges
    assert [stop - start for start, stop in map(layout.block, range(3))] == [b - a for a, b in pairwise(edges)]


@pytest.mark.parametrize(
    "shares", [(0.5, 0.5), (0.5, 0.5, 0.5), (-0.5, 1.0, 0.5), (float("nan"), 0.5, 0.5), (float("inf"), 0.0, 0.0)]
)
def test_refuses_impossible_shares(shares):
    with pytest.raises(InvalidInput):
        Layout(10, 3, 2, shares)


@given(st.integers(0, 500), st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(1, 60))
def test_unequal_blocks_cover_the_vector_once_and_in_order(elements, parts, chunk):
    if not sum(parts):
        return
    layout = Layout(elements, len(parts), chunk, tuple(part / sum(parts) for part in parts))
    spans = [span for block in range(len(parts)) for span in layout.chunks(block)]
    assert [i for start, stop in spans for i in range(start, stop)] == list(range(elements))
    assert layout.chunk_count() == len(spans)


@given(st.integers(0, 40), st.integers(1, 5), st.integers(1, 9))
def test_has_chunk_says_exactly_what_chunks_lists(elements, members, chunk):
    layout = Layout(elements, members, chunk)
    for block in range(-1, members + 1):
        listed = set(layout.chunks(block)) if 0 <= block < members else set()
        for start in range(-2, elements + 3):
            for stop in range(-2, elements + 3):
                assert layout.has_chunk(block, start, stop) == ((start, stop) in listed)


@pytest.mark.parametrize("bad", [(-1, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_refuses_impossible_layouts(bad):
    with pytest.raises(InvalidInput):
        Layout(*bad)


def test_chunks_take_at_most_fifty_milliseconds_of_a_slow_link_within_bounds():
    assert 125_000 - 4 * CHUNK_GRAIN < chunk_elements_for(2_500_000, 4) * 4 <= 125_000
    assert chunk_elements_for(1.0, 4) * 4 == LEAST_CHUNK_BYTES
    assert chunk_elements_for(1e12, 8) * 8 == MOST_CHUNK_BYTES
    assert chunk_elements_for(None, 4) * 4 == MOST_CHUNK_BYTES_UNKNOWN


@given(st.floats(1.0, 1e10), st.sampled_from([1, 2, 4, 8]), st.integers(0, 10**10))
def test_numbers_that_share_a_scale_do_not_part_at_the_end_of_a_chunk(rate, element_bytes, vector_bytes):
    elements = chunk_elements_for(rate, element_bytes, vector_bytes)
    assert elements > 0
    assert elements % CHUNK_GRAIN == 0


@pytest.mark.parametrize("rate", [2.5e6, 1.25e7, 1e9])
@pytest.mark.parametrize("vector_bytes", [10**6, 10**7, 10**8])
def test_no_other_size_of_chunk_ends_a_hop_earlier(rate, vector_bytes):
    def seconds(chunk_bytes):
        return vector_bytes / chunk_bytes * HANDLING_S + chunk_bytes / rate

    n_bytes = chunk_elements_for(rate, 4, vector_bytes) * 4
    for other in (n_bytes * 0.7, n_bytes * 1.4):
        if LEAST_CHUNK_BYTES <= other <= min(MOST_CHUNK_BYTES, rate * CHUNK_SECONDS):
            assert seconds(n_bytes) < seconds(other)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_refuses_impossible_rates(rate):
    with pytest.raises(InvalidInput):
        chunk_elements_for(rate, 4)
