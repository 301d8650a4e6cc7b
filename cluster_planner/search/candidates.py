"""A grouping worked out exactly: groups become pipelines, pipelines clusters, clusters rings, and all is predicted.

Averaging's bytes depend on how fast all clusters are, so a grouping is planned again with the rate that came out, until
that gains nothing. Searching over groupings is done elsewhere (cluster_search.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count

from cluster_planner.inputs.fleet import Fleet
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.pipeline.best_pipeline import Pipeline, plan_pipeline, timed
from cluster_planner.pipeline.common_cuts import fast_cuts
from cluster_planner.plan import Cluster, Ring
from cluster_planner.predict.objective import AveragingLimits, averaging_per_s
from cluster_planner.predict.prediction import Forecast, predict
from cluster_planner.rings import make_rings
from cluster_planner.search.arcs import open_tour

PASSES = 3
MANY = 24
"""More clusters than this are planned once with the load expected of averaging, or twice, first without load, if none
is known.
"""


@dataclass(frozen=True)
class Candidate:
    """Clusters that were worked out: with their rings, and with what they will do."""

    clusters: tuple[Cluster, ...]
    rings: tuple[Ring, ...]
    forecast: Forecast

    @property
    def objective(self) -> float:
        return self.forecast.prediction.objective


class Assembler:
    """An assembler works groupings out exactly, and caches the pipelines of groups that it has seen."""

    def __init__(self, fleet: Fleet, spans: SpanCosts, least: int) -> None:
        self._fleet, self.spans, self._least = fleet, spans, least
        self._toured: dict[tuple[str, ...], Pipeline | None] = {}
        self._known: dict[tuple[tuple[str, ...], float], Pipeline | None] = {}

    def candidate(self, groups: Sequence[tuple[str, ...]], samples_per_s: float = 0.0) -> Candidate | None:
        """Return the best plan with these clusters, or None where one of them cannot hold the model. `samples_per_s`:
        what the fleet is expected to make.
        """
        best: Candidate | None = None
        passes = PASSES if len(groups) <= MANY else 1 + (samples_per_s <= 0)
        for _ in range(passes if len(groups) > 1 else 1):
            load = averaging_per_s(len(groups), samples_per_s, self.spans.workload)
            found = self._once(groups, float(f"{load:.2g}"))
            if found is None and load > 0 and best is None:
                found = self._once(groups, 0.0)  # so much averaging leaves nothing of a link: clusters will wait for it
            if found is None or (best is not None and found.objective <= best.objective * (1 + 1e-6)):
                break
            best = found
            samples_per_s = found.forecast.prediction.samples_per_s
        return best

    def pipeline(self, group: tuple[str, ...], averaging_per_s: float) -> Pipeline | None:
        """Return the best pipeline of these nodes."""
        key = (group, averaging_per_s)
        if key not in self._known:
            self._known[key] = plan_pipeline(self._fleet, self.spans, group, averaging_per_s, self._least)
        return self._known[key]

    def _once(self, groups: Sequence[tuple[str, ...]], averaging_per_s: float) -> Candidate | None:
        planned = []
        for group in groups:
            pipeline = self.pipeline(group, averaging_per_s)
            if pipeline is None:
                return None
            planned.append((pipeline, group))
        planned.sort(key=lambda entry: (-entry[0].samples_per_s, entry[1]))
        return self._named([Cluster("", pipeline.window, pipeline.stages) for pipeline, _ in planned])

    def clusters(self, groups: Sequence[tuple[str, ...]]) -> tuple[Cluster, ...] | None:
        """Return the best pipelines of these groups while nothing is averaged, or None where one has none."""
        found = [self.pipeline(group, 0.0) for group in groups]
        return tuple(Cluster("", one.window, one.stages) for one in found if one is not None) if all(found) else None

    def along_tours(self, groups: Sequence[tuple[str, ...]]) -> tuple[Cluster, ...] | None:
        """Return pipelines of these groups in which all nodes run a stage, each along a tour with short hops, where the
        model fits so: in a tenth of the time of `clusters`, to compare groupings.
        """
        found = [self._along_tour(group) or self.pipeline(group, 0.0) for group in groups]
        return tuple(Cluster("", one.window, one.stages) for one in found if one is not None) if all(found) else None

    def _along_tour(self, group: tuple[str, ...]) -> Pipeline | None:
        if group not in self._toured:
            numbers = [self._fleet.arrays.number_of[name] for name in group]
            tour = open_tour(self._fleet, tuple(numbers), self.spans.coarse.sent_bytes)
            self._toured[group] = fast_cuts(self._fleet, self.spans.coarse, [self._fleet.names[i] for i in tour])
        return self._toured[group]

    def of_clusters(self, clusters: Sequence[Cluster]) -> Candidate:
        """Return the plan of these clusters, which are named anew, the fastest first."""
        alone = [timed(self._fleet, self.spans, cluster.stages, 0.0).samples_per_s for cluster in clusters]
        names = [tuple(stage.node for stage in cluster.stages) for cluster in clusters]
        ranked = sorted(range(len(clusters)), key=lambda i: (-alone[i], names[i]))
        return self._named([clusters[i] for i in ranked])

    def _named(self, clusters: Sequence[Cluster]) -> Candidate:
        labels = [self._fleet.rules.label(stage.node for stage in cluster.stages) for cluster in clusters]
        free = (name for i in count() if (name := f"c{i}") not in labels)
        named = tuple(
            replace(cluster, name=next(free) if label is None else label)
            for label, cluster in zip(labels, clusters, strict=True)
        )
        rings = make_rings(self._fleet, self.spans, named)
        return Candidate(named, rings, predict(self._fleet, self.spans, named, rings))


def averaging_limits_of(candidate: Candidate) -> AveragingLimits:
    """Return the limits that the rings of this plan have."""
    hops, forecast = 2 * (len(candidate.clusters) - 1), candidate.forecast
    predicted = forecast.prediction
    hop_s = forecast.latency_s / hops if hops else 0.0
    return AveragingLimits(predicted.samples_per_s, max(0.0, predicted.averaging_s - forecast.latency_s), hop_s)
