"""What pipelines are worth at most, by their bottlenecks and round trips; and those of all subsets of few nodes.

With a window w, no pipeline is faster than max(bottleneck, round trip / w, …), as stage_times.period_s says, nor counts
a sample more than the staleness factor of w. Up to the window at which neither waits for the other, what it makes grows
faster than that factor falls; so that window is the best one.

Of subsets, one dynamic programming over sets (order_and_cuts.py) finds the least bottleneck of each, and one the
shortest round trip, both with the memory that one micro-batch in flight takes, and while nothing is averaged. In:
nodes, or times. Out: bounds.
"""

import math
from collections.abc import Sequence

import numpy as np

from cluster_planner.inputs.fleet import Fleet
from cluster_planner.inputs.model_costs import Workload
from cluster_planner.inputs.spans import Floats, SpanCosts
from cluster_planner.pipeline.cost_tables import (
    GroupNodes,
    both_ways,
    bottleneck_tables,
    round_trip_tables,
    tables_that_fit,
)
from cluster_planner.pipeline.order_and_cuts import cheapest_of_sets, sets_by_size, windows_to_try
from cluster_planner.predict.objective import STALENESS_COST
from cluster_planner.predict.schedule_walk import SHORTEST_S


def most_of_subsets(fleet: Fleet, spans: SpanCosts, names: Sequence[str], least: int) -> Floats:
    """Return what any pipeline of `least` or more stages among a set of these nodes is worth at most, by the set as
    bits: bit i stands for names[i]. Takes time by 2 to the number of nodes.
    """
    group, work = GroupNodes(fleet, names), spans.workload
    fits = spans.ways_that_fit(*group.rooms, min(windows_to_try(work, len(names))))[None]
    tables = both_ways(spans, lambda flops: bottleneck_tables(spans, group, 0.0, flops))
    trips = both_ways(spans, lambda flops: round_trip_tables(spans, group, flops))
    longest_s = cheapest_of_sets(tables_that_fit(tables, fits), np.maximum)
    trip_s = cheapest_of_sets(tables_that_fit(trips, fits), np.add)
    sets, sizes = sets_by_size(len(names))
    most = np.zeros(1 << len(names))
    possible = sets[(sizes >= least) & np.isfinite(longest_s[sets])]
    most[possible] = most_worth(longest_s[possible], trip_s[possible], work)
    lone = possible[np.isin(possible, 1 << np.arange(len(names)))]
    most[lone] = work.micro_batch / np.maximum(longest_s[lone], SHORTEST_S)  # a lone stage has no staleness
    for i in range(len(names)):  # of a set, any part may be what runs
        without = np.arange(1 << len(names)) & ~(1 << i)
        most = np.maximum(most, most[without])
    return most


def most_worth(
    longest_s: Floats | float, trip_s: Floats | float, work: Workload, windows: tuple[float, float] = (1.0, math.inf)
) -> Floats:
    """Return what pipelines of two or more stages with these bottlenecks and round trips are worth at most, with the
    least and the largest of these `windows`, or any between. Flushes of a synchronous schedule are not counted.
    """
    least_s = np.maximum(longest_s, SHORTEST_S)
    if work.is_synchronous:
        return np.asarray(work.micro_batch / least_s)
    admitted_s = ((work.update_every - 1) * least_s + trip_s) / work.largest_window
    least_s = np.maximum(least_s, admitted_s)
    window = np.clip(trip_s / least_s, windows[0], min(windows[1], work.largest_window))
    delay = np.minimum((window - 1) / (2 * work.update_every), work.max_staleness)
    most: Floats = work.micro_batch / np.maximum(least_s, trip_s / window) / (1.0 + STALENESS_COST * delay)
    return most
