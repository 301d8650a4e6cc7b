"""The objective that a plan maximises: samples per second, each counted for what it is worth.

    objective = Σ over clusters of samples/s · s · a
    s = 1 / (1 + STALENESS_COST · τ)                 τ: mean staleness of the cluster's gradients, in updates
    a = 1 / (1 + ROUND_COST · log2(C) · log2(1 + h)) C: clusters;  h: updates a cluster makes apart from the others

τ = min((W − 1) / (2·U), max_staleness): a window of W delays the first stage by (W − 1)/U updates and the last by
none. h = (1 + max_lag) · average_every / (C · micro_batch · U): what it does between two rounds and while one is on its way.
Synchronous training by one cluster counts 1. STALENESS_COST is read off the simulation in design §6: one update of delay
made 1,500 updates worth some 1,250. ROUND_COST is set so that two clusters that average every 32 updates lose about
6 %; both are to be measured again by the experiments. Knows no machine.
"""

import math

from cluster_planner.costs import Workload

STALENESS_COST = 0.2
ROUND_COST = 0.01


def staleness_factor(window: int, stages: int, workload: Workload) -> float:
    """What a sample of a cluster is worth, for its staleness. A lone stage has none: backward follows forward."""
    if stages == 1:
        return 1.0
    mean_delay = min((window - 1) / (2 * workload.update_every), float(workload.max_staleness))
    return 1.0 / (1.0 + STALENESS_COST * mean_delay)


def averaging_factor(clusters: int, workload: Workload) -> float:
    """What a sample is worth, for being made by one of so many clusters."""
    update = clusters * workload.micro_batch * workload.update_every
    apart = (1 + workload.max_lag) * workload.average_every / update
    return 1.0 / (1.0 + ROUND_COST * math.log2(clusters) * math.log2(1.0 + apart))
