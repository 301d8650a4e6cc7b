"""Whether nodes have the memory for a model or a stage, with which window, and which stages have to recompute.

`MemoryFit` says whether a group of nodes can hold the model at all, for the least demanding run: one micro-batch in
flight, or with gpipe all of an update. Memory of a span grows with the span, so a chain of nodes that each take all
they can reaches as far as any. The answer is exact for up to EXACT_FIT_NODES nodes (the farthest reach over all orders,
by dynamic programming over sets). Beyond, it is only sufficient: largest memory first, or last.

`recomputing` chooses, stage by stage, where activations are forgotten and computed again: only where a stage would not
fit otherwise, since it costs another forward. Whether such a pipeline is worth more than one with fewer micro-batches
in flight is found by timing both (best_pipeline.py).
"""

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from cluster_planner.inputs.fleet import Fleet, Node
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
        self._host_table = spans.host_table(in_flight)
        self._least = least_stages
        self.process_bytes = work.process_bytes
        """Bytes that each stage needs before it holds anything."""
        self._reach: dict[tuple[float, float], list[int]] = {}
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
        fits = self._fits(*_rooms(self._fleet.node(name)))
        return bool(np.diagonal(fits, offset=1).any())

    @property
    def lacks_host_memory(self) -> bool:
        """Say whether the nodes hold the model on their GPUs, and only their machines' own memory is too short."""
        nodes = self._fleet.nodes
        if all(math.isinf(node.host_room_bytes) for node in nodes) or self.holds(self._fleet.names):
            return False
        return self._reaches([self._reach_of(node.room_bytes, math.inf) for node in nodes])

    def least_host_bytes(self) -> int:
        """Return what the least demanding unit needs of its machine's own memory, as a stage on a GPU."""
        return int(np.diagonal(self._host_table, offset=1).min())

    def holds(self, names: Sequence[str]) -> bool:
        """Say whether these nodes can hold the whole model, in at least the least number of stages."""
        key = tuple(sorted(names))
        if key not in self._known:
            reaches = [self._reach_of(*_rooms(self._fleet.node(name))) for name in key]
            self._known[key] = len(key) >= self._least and self._reaches(reaches)
        return self._known[key]

    def _reaches(self, reaches: Sequence[Sequence[int]]) -> bool:
        far = _farthest(reaches) if len(reaches) <= EXACT_FIT_NODES else _by_size(reaches)
        return far >= len(self._table) - 1

    def _fits(self, room_bytes: float, host_room_bytes: float) -> NDArray[np.bool_]:
        fits: NDArray[np.bool_] = (self._table <= room_bytes) & (self._host_table <= host_room_bytes)
        return fits

    def _reach_of(self, room_bytes: float, host_room_bytes: float) -> list[int]:
        """[position] → the farthest position that a span from there can end at."""
        key = room_bytes, host_room_bytes
        if key not in self._reach:
            fits = self._fits(*key)
            self._reach[key] = [int(row.nonzero()[0].max(initial=start)) for start, row in enumerate(fits)]
        return self._reach[key]


def _rooms(node: Node) -> tuple[float, float]:
    return node.room_bytes, node.host_room_bytes


def stage_fits(node: Node, spans: SpanCosts, stage: Stage, place: tuple[int, int], window: int) -> bool:
    """Say whether the node has memory for a stage that is number `place[0]` of `place[1]`, with `window` micro-batches
    in flight; of a GPU, whether its machine has, too.
    """
    needed = spans.stage_memory_bytes(*stage.units, place, window, recomputes=stage.recomputes)
    if needed > node.room_bytes or math.isinf(node.host_room_bytes):
        return needed <= node.room_bytes
    return spans.stage_host_bytes(*stage.units, place, window) <= node.host_room_bytes


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
        for way in ways:
            in_that_way = stage if stage.recomputes == way else replace(stage, recomputes=way)
            if stage_fits(fleet.node(stage.node), spans, in_that_way, (index, len(stages)), window):
                chosen.append(in_that_way)
                break
        else:
            return None
    return tuple(chosen)


def _fit(fleet: Fleet, spans: SpanCosts, stages: Sequence[Stage], window: int) -> bool:
    """Say whether every stage has memory for `window` micro-batches in flight, or for what a synchronous schedule
    holds.
    """
    return all(
        stage_fits(fleet.node(stage.node), spans, stage, (index, len(stages)), window)
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
