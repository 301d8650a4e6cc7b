"""What many similar plans of one fleet are worth: the objective alone, for searches that compare plan with plan.

`PlanWorths.of` gives the number that `predict` gives for clusters with the rings that `make_rings` makes for them. What
was computed for a pipeline, or for the ring of a segment, is kept, so a plan that differs from one before in two
clusters costs about a millisecond. Nothing is written in words, and no memory is computed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from cluster_planner.inputs.fleet import Fleet
from cluster_planner.inputs.model_costs import PARAMETER_BYTES
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.plan import Cluster, Stage
from cluster_planner.predict.objective import averaging_factor
from cluster_planner.predict.prediction import (
    PipelineTimes,
    arrays_of,
    near_its_window,
    predict,
    times_of,
    value_of,
    worth_of,
)
from cluster_planner.predict.round_traffic import busiest_pair, times_of_rounds
from cluster_planner.predict.stage_times import window_limited_s
from cluster_planner.predict.steady_state import PipelineArrays
from cluster_planner.rings import OWN_ORDER, Exchange, exchange_of, make_rings, tour_of

REMEMBERED = 20_000
"""About this many pipelines, and as many rings, are kept."""


class PlanWorths:
    """Evaluates plans of one fleet, model and workload."""

    def __init__(self, fleet: Fleet, spans: SpanCosts) -> None:
        self._fleet, self._spans = fleet, spans
        self._pipelines: dict[tuple[Stage, ...], PipelineTimes] = {}
        self._alone: dict[tuple[tuple[Stage, ...], int], float] = {}
        self._tours: dict[tuple[tuple[str, ...], int, bool], list[str]] = {}
        self._exchanges: dict[tuple[tuple[str, ...], int, bool, bool], Exchange] = {}
        self._walked_s: dict[tuple[tuple[Stage, ...], int], float] = {}
        self._has_copies = any(spans.copied_bytes(start, spans.count) > 0 for start in range(spans.count))
        self.asked = 0
        """The number of plans that have been evaluated."""

    def of(
        self, clusters: Sequence[Cluster], *, roughly: bool = False, above: float = 0.0, averaged: bool = True
    ) -> float:
        """Return the objective of these clusters; without `averaged` what it would be if nothing were averaged.

        `roughly`: in a tenth of the time, without the shares of unequal blocks and without walking pipelines and
        rounds, so that the number is a little too high where these count. `above`: only plans that are worth more are
        of interest; of any other one a number may be returned that is too high, but not above it. Where pipelines are
        still to be walked, one that is worth a few percent more may, rarely, be taken for such a one.
        """
        self.asked += 1
        work = self._spans.workload
        if above > 0 and (most := self.at_most(clusters)) <= above:
            return most  # averaging makes nothing faster
        if averaged and (
            self._has_copies or len(clusters) > OWN_ORDER
        ):  # these have other rings than one of its own a segment
            rings = make_rings(self._fleet, self._spans, clusters)
            return predict(self._fleet, self._spans, clusters, rings).prediction.objective
        exchanges = self._exchanges_of(clusters, roughly) if averaged and len(clusters) > 1 else []
        stages = arrays_of(self._fleet, [self._pipeline(one) for one in clusters], exchanges)
        alone = times_of_rounds(exchanges) if averaged else None

        def worth(stages: PipelineArrays, least_s: float = 0.0) -> float:
            return worth_of(self._fleet, work, clusters, stages.pace(work, alone, least_s).rates.tolist())

        if roughly:
            return worth(stages, stages.walked_s(work, alone, roughly=True))
        for walked in self._walked(clusters, stages):
            if above > 0 and (most := worth(walked)) <= above:
                return most  # what is still to be walked makes nothing faster
            stages = walked
        return worth(stages, stages.walked_s(work, alone))

    def at_most(self, clusters: Sequence[Cluster]) -> float:
        """Return the objective of these clusters if nothing were averaged and each had its hosts' links for itself:
        they are worth no more. Where the pipelines are known, it takes next to no time.
        """
        worth, work = 0.0, self._spans.workload
        for cluster in clusters:
            key = cluster.stages, cluster.window
            if key not in self._alone:
                if len(self._alone) > REMEMBERED:
                    self._alone.clear()
                period = arrays_of(self._fleet, [self._pipeline(cluster)], []).periods_s(work)
                self._alone[key] = value_of(self._fleet, work, cluster, work.micro_batch / float(period[0]))
            worth += self._alone[key]
        return worth * averaging_factor(len(clusters), work)

    def limiting(self, clusters: Sequence[Cluster]) -> list[tuple[int, int]]:
        """Return (cluster, stage) of those that hold the plan up: the slowest of each cluster, and the two between whom
        a round of averaging takes longest.
        """
        exchanges = self._exchanges_of(clusters, roughly=True) if len(clusters) > 1 else []
        stages = arrays_of(self._fleet, [self._pipeline(one) for one in clusters], exchanges)
        most, first = stages.occupancy().most, stages.first.tolist()
        found = [
            (i, int(most[at : at + len(one.stages)].argmax()))
            for i, (at, one) in enumerate(zip(first, clusters, strict=True))
        ]
        if exchanges:
            names = {self._fleet.names[i] for i in busiest_pair(exchanges, len(self._fleet.nodes))}
            found += [
                (i, s) for i, one in enumerate(clusters) for s, stage in enumerate(one.stages) if stage.node in names
            ]
        return found

    def _walked(self, clusters: Sequence[Cluster], stages: PipelineArrays) -> Iterator[PipelineArrays]:
        """Yield the stages with the walked periods that are known already, then with one more after the other."""
        least_s, unknown = stages.flushed_s.copy(), []
        for at in near_its_window(self._spans, clusters, stages):
            walked_s = self._walked_s.get((clusters[at].stages, clusters[at].window))
            if walked_s is None:
                unknown.append(at)
            else:
                least_s[at] = walked_s
        yield replace(stages, flushed_s=least_s.copy())
        for at in unknown:
            if len(self._walked_s) > REMEMBERED:
                self._walked_s.clear()
            walked_s = window_limited_s(self._fleet, self._spans, clusters[at])
            self._walked_s[clusters[at].stages, clusters[at].window] = least_s[at] = walked_s
            yield replace(stages, flushed_s=least_s.copy())

    def _pipeline(self, cluster: Cluster) -> PipelineTimes:
        known = self._pipelines.get(cluster.stages)
        if known is None or known.cluster.window != cluster.window:
            if len(self._pipelines) > REMEMBERED:
                self._pipelines.clear()
            known = self._pipelines[cluster.stages] = times_of(self._fleet, self._spans, cluster)
        return known

    def _exchanges_of(self, clusters: Sequence[Cluster], roughly: bool) -> list[Exchange]:
        held = [0] * len(clusters)
        edges = sorted({stage.units[1] for cluster in clusters for stage in cluster.stages})
        found, start = [], 0
        for number, end in enumerate(edges):
            for i, cluster in enumerate(clusters):
                while cluster.stages[held[i]].units[1] <= start:
                    held[i] += 1
            names = tuple(cluster.stages[at].node for cluster, at in zip(clusters, held, strict=True))
            found.append(self._exchange(names, self._spans.parameter_bytes(start, end), number % 2 == 1, roughly))
            start = end
        return found

    def _exchange(self, names: tuple[str, ...], parameter_bytes: int, back: bool, roughly: bool) -> Exchange:
        key = (names, parameter_bytes, back, roughly)
        if key not in self._exchanges:
            if len(self._exchanges) > REMEMBERED:
                self._exchanges.clear()
            work, in_order = self._spans.workload, self._in_order(names, parameter_bytes, back)
            given = self._fleet, in_order, parameter_bytes // PARAMETER_BYTES, work.averaged_number_bytes
            self._exchanges[key] = exchange_of(
                *given,
                each=work.robust_averaging,
                hierarchical=work.hierarchical_averaging,
                roughly=roughly,
            )
        return self._exchanges[key]

    def _in_order(self, names: tuple[str, ...], parameter_bytes: int, back: bool) -> list[str]:
        key = names, parameter_bytes, back
        if key not in self._tours:
            if len(self._tours) > REMEMBERED:
                self._tours.clear()
            self._tours[key] = [names[i] for i in tour_of(self._fleet, names, parameter_bytes, back=back)]
        return self._tours[key]
