"""The objective that a plan maximises: samples per second, each counted for what it is worth.

    objective = Σ over clusters of samples/s · s · a
    s = 1 / (1 + STALENESS_COST · τ)               τ: mean staleness of the cluster's gradients, in updates
    a = 1 / (1 + ROUND_COST · (C − 1) · log2(1 + h))    C: clusters;  h: updates a cluster makes apart from
    the others

τ = min((W − 1) / (2·U), max_staleness): a window of W delays the first stage by (W − 1)/U updates and the
last by none. h = (1 + max_lag) · average_every / (C · micro_batch · U): what it does between two rounds and
while one is on its way. Synchronous training by one cluster counts 1. `a` has the form of the law of large
batches, 1 / (1 + B / B_critical): each further cluster adds to the samples behind one common step, at falling
returns, and the more so the longer clusters are apart.

STALENESS_COST is read off the simulation in design §6: one update of delay made 1,500 updates worth some
1,250. ROUND_COST: DiLoCo (2023, table 2) reports for 8 workers 500 updates apart a perplexity between those
of one worker with as many samples and one with an eighth; by interpolation its samples count 0.55 to 0.66, so
the cost is 0.008 to 0.013, with an outer Nesterov step; plain averaging is taken to cost a little more.
Experiments are to measure both. Knows no machine.
"""

import math

from cluster_planner.costs import Workload

STALENESS_COST = 0.2
ROUND_COST = 0.015


def staleness_factor(window: int, stages: int, workload: Workload) -> float:
    """What a sample of a cluster is worth, for its staleness. A lone stage has none: backward follows
    forward.
    """
    if stages == 1:
        return 1.0
    mean_delay = min((window - 1) / (2 * workload.update_every), float(workload.max_staleness))
    return 1.0 / (1.0 + STALENESS_COST * mean_delay)


def averaging_factor(clusters: int, workload: Workload) -> float:
    """What a sample is worth, for being made by one of so many clusters."""
    update = clusters * workload.micro_batch * workload.update_every
    apart = (1 + workload.max_lag) * workload.average_every / update
    return 1.0 / (1.0 + ROUND_COST * (clusters - 1) * math.log2(1.0 + apart))
