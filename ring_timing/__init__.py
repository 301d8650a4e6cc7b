"""How one ring divides a vector, and how long one round of it takes: arithmetic on numbers only.

In: the vector's length, the bytes of an element, and the rates and latencies of the links between a ring's members.
Out: a `Division` (direct or ring, chunk size, block shares), its `Layout` in elements, and a `RingRound` in seconds.
"""

from ring_timing.division import Division, RingLinks, RingRound, direct_is_faster, divide, ring_round, shares_that_pay
from ring_timing.groups import GroupedRound, Groups, PairLink, best_groups, grouped_round
from ring_timing.layout import (
    CHUNK_GRAIN,
    CHUNK_SECONDS,
    LEAST_CHUNK_BYTES,
    Layout,
    chunk_elements_for,
    layout_of,
)
from ring_timing.shares import fastest_s, hop_bytes, hops_from_links, round_s, shares_from_hops

__all__ = [
    "CHUNK_GRAIN",
    "CHUNK_SECONDS",
    "LEAST_CHUNK_BYTES",
    "Division",
    "GroupedRound",
    "Groups",
    "Layout",
    "PairLink",
    "RingLinks",
    "RingRound",
    "best_groups",
    "chunk_elements_for",
    "direct_is_faster",
    "divide",
    "fastest_s",
    "grouped_round",
    "hop_bytes",
    "hops_from_links",
    "layout_of",
    "ring_round",
    "round_s",
    "shares_from_hops",
    "shares_that_pay",
]
