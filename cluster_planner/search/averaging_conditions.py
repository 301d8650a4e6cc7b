"""What a fleet's rings allow, as the last plan shows it: for the score of groupings that are not worked out.

Decides how samples/s fall where the rings of so many clusters cannot keep up: steady_state.py's interval, with what
rounds
take of the links but without what pipelines fill of them, which estimates count already (averaging_per_s).
"""

from dataclasses import dataclass

from cluster_planner.inputs.model_costs import Workload
from cluster_planner.predict.objective import averaging_factor
from cluster_planner.search.candidates import Candidate


@dataclass(frozen=True)
class Conditions:
    """`sending_s`: what a round takes of the busiest link; `hop_s`: latency of one hop of a ring."""

    samples_per_s: float = 0.0
    sending_s: float = 0.0
    hop_s: float = 0.0

    def carried(self, clusters: float, work: Workload) -> float:
        """The most samples/s with which the rings of so many clusters keep up."""
        trip_s = 2 * (clusters - 1) * self.hop_s
        interval_s = max(self.sending_s, (self.sending_s + trip_s) / work.max_lag)
        if clusters <= 1 or interval_s <= 0:
            return float("inf")
        return work.round_samples(clusters) / interval_s

    def worth(self, clusters: float, samples_per_s: float, value: float, work: Workload) -> float:
        """The objective, about."""
        if samples_per_s <= 0:
            return 0.0
        kept = min(1.0, self.carried(clusters, work) / samples_per_s)
        return value * kept * averaging_factor(clusters, work)


def conditions_of(candidate: Candidate) -> Conditions:
    """As they are with this plan."""
    hops, forecast = 2 * (len(candidate.clusters) - 1), candidate.forecast
    predicted = forecast.prediction
    hop_s = forecast.latency_s / hops if hops else 0.0
    return Conditions(predicted.samples_per_s, max(0.0, predicted.averaging_s - forecast.latency_s), hop_s)
