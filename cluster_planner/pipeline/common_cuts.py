"""Cuts for given orders of nodes: of one cluster, or the same cuts for several.

Where several clusters have the same cuts, each ring joins one stage of every cluster, and stages of neighbours make a
ring of neighbours. The cuts are chosen for the slowest node of each stage, under the least memory, by the dynamic
program of order_and_cuts.py, once for each window that leaves other memory; every node gets a stage. This takes a few
milliseconds, since no order is looked for and nothing is walked.

Where several clusters have the same cuts, they are chosen twice: so that the slowest stage computes least, and so that
the rounds of averaging do not hold it up either. In a round each of C clusters trains E / C samples, so a ring that
takes s seconds for a byte of parameters costs a stage of P bytes at least

    s · P · micro_batch · C / E        seconds per micro-batch
"""

from collections.abc import Iterator, Sequence

import numpy as np

from cluster_planner.inputs.fleet import Fleet
from cluster_planner.inputs.model_costs import PARAMETER_BYTES
from cluster_planner.inputs.spans import Floats, SpanCosts
from cluster_planner.pipeline.best_pipeline import Pipeline, timed
from cluster_planner.pipeline.cost_tables import GroupNodes, both_ways, bottleneck_tables, first_that_fits
from cluster_planner.pipeline.memory_fit import recomputing
from cluster_planner.pipeline.order_and_cuts import Tables, best_cuts, windows_to_try
from cluster_planner.plan import Stage
from cluster_planner.rings import exchange_of, tour_of


def common_cuts(fleet: Fleet, spans: SpanCosts, orders: Sequence[Sequence[str]]) -> Iterator[tuple[Pipeline, ...]]:
    """Yield pipelines of these nodes, all with the same cuts, for each window that leads to other cuts.

    `orders`: the nodes of each pipeline, equally many. Nothing is yielded where there are more nodes than spans, or
    where one has too little memory.
    """
    stages = len(orders[0])
    if stages >= len(spans.positions):
        return
    group = GroupNodes.slowest_of(fleet, orders)
    tables = both_ways(spans, lambda flops: bottleneck_tables(spans, group, 0.0, flops))
    rounds_s: Floats | None = None
    seen: set[tuple[tuple[int, int], ...]] = set()
    tried: list[bytes] = []
    for window in windows_to_try(spans.workload, stages):
        fits = spans.ways_that_fit(*group.rooms, window)
        if fits.tobytes() in tried:
            continue
        tried.append(fits.tobytes())
        computing = first_that_fits(tables, fits)
        for heeds_rounds in (False, True) if len(orders) > 1 else (False,):
            stage = computing.stage
            if heeds_rounds:
                rounds_s = _of_rounds(fleet, spans, orders) if rounds_s is None else rounds_s
                stage = np.maximum(stage, rounds_s)
            found = best_cuts(Tables(stage, computing.hop), tuple(range(stages)), np.maximum, stages)
            if found is None:
                continue
            at = spans.positions
            cuts = tuple((int(at[start]), int(at[end])) for _, start, end in found.steps)
            if cuts not in seen:
                seen.add(cuts)
                made = [_pipeline(fleet, spans, order, cuts, window) for order in orders]
                if all(made):
                    yield tuple(one for one in made if one is not None)


def _of_rounds(fleet: Fleet, spans: SpanCosts, orders: Sequence[Sequence[str]]) -> Floats:
    """[stage, i, j] → the seconds per micro-batch that averaging costs the span between two positions, by the ring of
    that stage's nodes.
    """
    work, clusters, stages = spans.workload, len(orders), len(orders[0])
    mean_bytes = max(PARAMETER_BYTES, spans.parameter_bytes(0, spans.count) // stages)
    seconds = []
    for at in range(stages):
        names = [order[at] for order in orders]
        in_order = [names[i] for i in tour_of(fleet, names, mean_bytes)]
        given = fleet, in_order, mean_bytes // PARAMETER_BYTES, work.averaged_number_bytes
        each, hierarchical = work.robust_averaging, work.hierarchical_averaging
        seconds.append(exchange_of(*given, each=each, hierarchical=hierarchical, roughly=True).sending_s)
    of_a_byte = np.array(seconds) / mean_bytes * work.micro_batch * clusters / work.round_samples(clusters)
    return of_a_byte[:, None, None] * spans.parameter_table


def fast_cuts(fleet: Fleet, spans: SpanCosts, order: Sequence[str]) -> Pipeline | None:
    """Return the most valuable of the pipelines in which all of these nodes run a stage, in this order."""
    found = (pipeline for (pipeline,) in common_cuts(fleet, spans, [order]))
    return max(found, key=lambda one: one.value, default=None)


def _pipeline(
    fleet: Fleet, spans: SpanCosts, names: Sequence[str], cuts: Sequence[tuple[int, int]], window: int
) -> Pipeline | None:
    plain = [Stage(name, units) for name, units in zip(names, cuts, strict=True)]
    stages = recomputing(fleet, spans, plain, window) or recomputing(fleet, spans, plain, 1)
    return None if stages is None else timed(fleet, spans, stages, 0.0)
