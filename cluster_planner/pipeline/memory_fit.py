"""Whether nodes have the memory for a model or a stage, with which window, and which stages have to recompute.

`MemoryFit` says whether a group of nodes can hold the model at all, for the least demanding run: one micro-batch in
flight, or with gpipe all of an update. Memory of a span grows with the span, so a chain of nodes that each take all
they can reaches as far as any. The answer is exact for up to EXACT_FIT_NODES nodes (the farthest reach over all orders,
by dynamic programming over sets). Beyond, it is only sufficient: largest memory first, or last.

`recomputing` chooses, stage by stage, where activations are forgotten and computed again: only where a stage would not
fit otherwise, since it costs another forward. Whether such a pipeline is worth more than one with fewer micro-batches
in flight is found by timing both (best_pipeline.py).
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from cluster_planner.inputs.fleet import Fleet
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.plan import Stage

EXACT_FIT_NODES = 6


class MemoryFit:
    """Says for one model and one fleet which nodes, and which groups of nodes, have the memory."""

    def __init__(self, fleet: Fleet, spans: SpanCosts, least_stages: int) -> None:
        self._fleet = fleet
        self.workload = work = spans.workload
        in_flight = work.update_every if work.schedule == "gpipe" else 1
        self._table = spans.memory_table(in_flight, recomputes=work.activation_checkpointing == "always")
        if work.activation_checkpointing == "auto":
            self._table = np.minimum(self._table, spans.memory_table(in_flight, recomputes=True))
        self._least = least_stages
        self.process_bytes = work.process_bytes
        """Bytes that each stage needs before it holds anything."""
        self._reach: dict[int, list[int]] = {}
        self._known: dict[tuple[str, ...], bool] = {}

    @property
    def smallest_unit_bytes(self) -> int:
        """Return the bytes that the least demanding unit needs as a stage."""
        return int(np.diagonal(self._table, offset=1).min())

    @property
    def largest_unit_bytes(self) -> int:
        """Return the bytes that the most demanding unit needs as a stage."""
        return int(np.diagonal(self._table, offset=1).max())

    @property
    def whole_model_bytes(self) -> int:
        """Return the bytes that the whole model needs as one stage."""
        return int(self._table[0, -1])

    def holds_a_unit(self, name: str) -> bool:
        return self._fleet.node(name).room_bytes >= self.smallest_unit_bytes

    def holds(self, names: Sequence[str]) -> bool:
        """Say whether these nodes can hold the whole model, in at least the least number of stages."""
        key = tuple(sorted(names))
        if key not in self._known:
            reaches = [self._reach_of(self._fleet.node(name).room_bytes) for name in key]
            end = len(self._table) - 1
            far = _farthest(reaches) if len(reaches) <= EXACT_FIT_NODES else _by_size(reaches)
            self._known[key] = len(key) >= self._least and far >= end
        return self._known[key]

    def _reach_of(self, memory_bytes: int) -> list[int]:
        """[position] → the farthest position that a span from there can end at."""
        if memory_bytes not in self._reach:
            fits = self._table <= memory_bytes
            self._reach[memory_bytes] = [int(row.nonzero()[0].max(initial=start)) for start, row in enumerate(fits)]
        return self._reach[memory_bytes]


def _farthest(reaches: Sequence[Sequence[int]]) -> int:
    best = [0] * (1 << len(reaches))
    for used in range(1, len(best)):
        best[used] = max(reach[best[used & ~(1 << i)]] for i, reach in enumerate(reaches) if used >> i & 1)
    return best[-1]


def _by_size(reaches: Sequence[Sequence[int]]) -> int:
    farthest = 0
    for reverse in (True, False):
        at = 0
        for reach in sorted(reaches, key=lambda reach: reach[0], reverse=reverse):
            at = reach[at]
        farthest = max(farthest, at)
    return farthest


def recomputing(fleet: Fleet, spans: SpanCosts, stages: Sequence[Stage], window: int) -> tuple[Stage, ...] | None:
    """Return the same stages, each in the first way that fits with `window` micro-batches in flight (or what a
    synchronous schedule holds), or None where one fits in no way.
    """
    mode = spans.workload.activation_checkpointing
    ways = [way for way in (False, True) if mode == "auto" or way == (mode == "always")]
    chosen = []
    for index, stage in enumerate(stages):
        place, memory_bytes = (index, len(stages)), fleet.node(stage.node).room_bytes
        for way in ways:
            if spans.stage_memory_bytes(*stage.units, place, window, recomputes=way) <= memory_bytes:
                chosen.append(stage if stage.recomputes == way else replace(stage, recomputes=way))
                break
        else:
            return None
    return tuple(chosen)


def _fit(fleet: Fleet, spans: SpanCosts, stages: Sequence[Stage], window: int) -> bool:
    """Say whether every stage has memory for `window` micro-batches in flight, or for what a synchronous schedule
    holds.
    """
    return all(
        spans.stage_memory_bytes(*stage.units, (index, len(stages)), window, recomputes=stage.recomputes)
        <= fleet.node(stage.node).room_bytes
        for index, stage in enumerate(stages)
    )


def largest_fitting_window(
    fleet: Fleet, spans: SpanCosts, stages: Sequence[Stage], wanted: int, planned: int | None = None
) -> int:
    """Return the largest window up to `wanted` that every stage has memory for; at least 1.

    planned: the window of the plan, in which ways to recompute are fixed. A stage that recomputes unit by unit then has
    no more micro-batches in flight than leave that the way of less memory.
    """

    def possible(window: int) -> bool:
        fits = _fit(fleet, spans, stages, window)
        return fits and (planned is None or all(_unit_by_unit_still(spans, stages, planned, window)))

    if possible(wanted):
        return wanted
    return max(1, bisect_left(range(1, wanted), True, key=lambda w: not possible(w)))


def _unit_by_unit_still(spans: SpanCosts, stages: Sequence[Stage], planned: int, window: int) -> Iterator[bool]:
    """Yield, for each stage that recomputes unit by unit with `planned` micro-batches in flight, whether that takes
    less memory with `window`, too."""
    for index, stage in enumerate(stages):
        place = index, len(stages)
        if stage.recomputes and spans.recomputes_unit_by_unit(*stage.units, place, planned):
            yield spans.recomputes_unit_by_unit(*stage.units, place, window)
