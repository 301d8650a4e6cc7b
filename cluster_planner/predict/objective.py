"""The objective that a plan maximises: samples per second, each counted for what it is worth.

    objective = Σ over clusters of samples/s · s · a
    s = 1 / (1 + STALENESS_COST · τ)                  τ: mean staleness of the cluster's gradients, in updates
    a = 1 / (1 + ROUND_COST · (C − 1) · log2(1 + h))  C: clusters; h: updates a cluster makes apart from the others

τ = min((W − 1) / (2·U), max_staleness): a window of W delays the first stage by (W − 1)/U updates and the last by none.
h = (1 + max_lag) · E / (C · micro_batch · U) is what a cluster does between two rounds and while one is on its way. E =
max(average_every, C · micro_batch · U) samples make a round, which holds an update of each cluster. Synchronous
training by one cluster counts 1. `a` has the form of the law of large batches, 1 / (1 + B / B_critical): each further
cluster adds to the samples behind one common step, at falling returns.

Part `costs` of experiments/plan_quality fits both constants to trainings, with intervals, and says whether these here
lie within. STALENESS_COST began as a guess. By part `depth` of experiments/pipeline (one seed) AdamW with look_ahead, a
job's default, needs 1.64 and 2.58 times the updates at τ = 3.5 and 7.5, which makes it 0.18 and 0.21, and SOAP 0.06 to
0.12. ROUND_COST, and that `a` falls with C − 1 and not with log2(C), were chosen with the six-node example in view,
where they decide: with STALENESS_COST 0.2 it gets three clusters up to a ROUND_COST of 0.010, two from 0.012 to 0.03,
one at 0.05. Where values lie that close, the number of clusters is a judgement of this file, not a finding.
Part `costs` fits 0.18 ± 0.05 and 0.14 ± 0.03: decision 217 says why ROUND_COST stays.

`AveragingLimits` approximates the objective of groupings that are not worked out, from the last plan that was:
samples/s fall where the rings of so many clusters cannot keep up (the interval of steady_state.py, with what rounds
take of the links, but without what pipelines fill of them, which estimates count already by `averaging_per_s`).
"""

import math
from dataclasses import dataclass

from cluster_planner.inputs.model_costs import Workload

STALENESS_COST = 0.2
ROUND_COST = 0.015


def staleness_factor(window: int, stages: int, workload: Workload) -> float:
    """Return what a sample of a cluster is worth, for its staleness. A lone stage has none: backward follows
    forward.
    """
    if stages == 1:
        return 1.0
    mean_delay = min((window - 1) / (2 * workload.update_every), float(workload.max_staleness))
    return 1.0 / (1.0 + STALENESS_COST * mean_delay)


def averaging_factor(clusters: float, workload: Workload) -> float:
    """Return what a sample is worth, for being made by one of so many clusters."""
    update = clusters * workload.micro_batch * workload.update_every
    apart = (1 + workload.max_lag) * workload.round_samples(clusters) / update
    return 1.0 / (1.0 + ROUND_COST * (clusters - 1) * math.log2(1.0 + apart))


@dataclass(frozen=True)
class AveragingLimits:
    """The limits that averaging sets.

    `sending_s` is what a round takes of the busiest link; `hop_s` is the latency of one hop of a ring.
    """

    samples_per_s: float = 0.0
    sending_s: float = 0.0
    hop_s: float = 0.0

    def carried(self, clusters: float, work: Workload) -> float:
        """Return the most samples/s with which the rings of so many clusters keep up."""
        trip_s = 2 * (clusters - 1) * self.hop_s
        interval_s = max(self.sending_s, (self.sending_s + trip_s) / work.max_lag)
        if clusters <= 1 or interval_s <= 0:
            return float("inf")
        return work.round_samples(clusters) / interval_s

    def worth(self, clusters: float, samples_per_s: float, value: float, work: Workload) -> float:
        """Return the approximate objective of so many clusters, from their samples/s and their value."""
        if clusters <= 0 or samples_per_s <= 0:  # of no cluster a difference of rates may leave a rounding error
            return 0.0
        kept = min(1.0, self.carried(clusters, work) / samples_per_s)
        return value * kept * averaging_factor(clusters, work)


def averaging_per_s(clusters: float, samples_per_s: float, work: Workload) -> float:
    """Return the bytes a second that averaging moves each way per parameter byte a stage holds."""
    moved = work.vectors_sent(clusters) * work.averaged_bytes_per_parameter_byte
    return moved * samples_per_s / work.round_samples(clusters)
