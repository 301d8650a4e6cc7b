"""Segments: the common refinement of all clusters' cuts.

Decides at which units a ring must begin and end: wherever any cluster has a cut. Inside a segment every
cluster holds all units in one stage, so each segment can be averaged by itself. Knows spans of units only.
"""

import itertools
from collections.abc import Sequence


def common_refinement(clusters: Sequence[Sequence[tuple[int, int]]]) -> tuple[tuple[int, int], ...]:
    """The largest spans that lie inside one stage in every cluster.

    `clusters`: for each cluster its stages' half-open spans, which cover the same units, in order.
    """
    edges = sorted({edge for spans in clusters for span in spans for edge in span})
    return tuple(itertools.pairwise(edges))


def holder(spans: Sequence[tuple[int, int]], segment: tuple[int, int]) -> int:
    """The index of the stage (of one cluster's `spans`) that holds the segment."""
    for index, (start, end) in enumerate(spans):
        if start <= segment[0] and segment[1] <= end:
            return index
    raise ValueError(f"no span of {list(spans)} holds {segment}")
