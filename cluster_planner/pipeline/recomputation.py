"""Which stages forget their activations and compute them again, because memory is too short to keep them.

Decides it stage by stage for a number of micro-batches in flight: only where a stage would not fit otherwise, since it
costs another forward. Knows no speed: whether such a pipeline is worth more than one with fewer micro-batches in
flight is found by timing both.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from cluster_planner.inputs.fleet import Fleet
from cluster_planner.inputs.spans import Floats, SpanCosts
from cluster_planner.plan import Stage


def ways_that_fit(spans: SpanCosts, memory: Floats, window: int) -> NDArray[np.bool_]:
    """[way, node, i, j] → whether the span between two positions fits into each of `memory` (bytes by node) with
    `window` micro-batches in flight. Way 0 keeps activations, way 1 recomputes them; a way that the workload rules out
    fits nowhere.
    """
    mode = spans.workload.activation_checkpointing
    needed = np.stack([spans.memory_table(window), spans.memory_table(window, recomputes=True)])
    allowed = np.array([mode != "always", mode != "never"])
    return allowed[:, None, None, None] & (needed[:, None] <= memory[None, :, None, None])


def recomputing(fleet: Fleet, spans: SpanCosts, stages: Sequence[Stage], window: int) -> tuple[Stage, ...] | None:
    """The same stages, each in the first way that fits with `window` micro-batches in flight (or what a synchronous
    schedule holds); None where one fits in no way.
    """
    mode = spans.workload.activation_checkpointing
    ways = [way for way in (False, True) if mode == "auto" or way == (mode == "always")]
    chosen = []
    for index, stage in enumerate(stages):
        place, memory_bytes = (index, len(stages)), fleet.node(stage.node).memory_bytes
        for way in ways:
            if spans.stage_memory_bytes(*stage.units, place, window, recomputes=way) <= memory_bytes:
                chosen.append(stage if stage.recomputes == way else replace(stage, recomputes=way))
                break
        else:
            return None
    return tuple(chosen)
