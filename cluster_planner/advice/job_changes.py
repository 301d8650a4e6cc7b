"""What another setting of the job would gain with the same clusters and cuts; and the type of every suggestion.

What is tried depends on what clusters wait for: for averaging, a larger average_every or max_lag; for the round trip, a
larger max_staleness or update_every; for the flush of a synchronous schedule, a larger update_every, or schedule async.
Nothing is tried where waiting costs too little, and no average_every that would leave training fewer than FEWEST_ROUNDS
rounds. All is predicted again under the changed workload, with windows as they are, or as wanted then and as memory
allows; what does not fit in memory is not suggested. A larger update_every is credited with its speed alone, each
sample counted as now, and the suggestion says on what condition: the objective would call its gradients less stale, and
does not know that a larger batch learns less from each sample.

Suggestions are compared by what the plan is worth with them, the objective, since longer hours raise it and no
samples/s, and rarer averaging raises samples/s and makes each count less.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from cluster_planner.inputs.fleet import Fleet
from cluster_planner.inputs.model_costs import MOST_IN_FLIGHT, Workload
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.pipeline.memory_fit import largest_fitting_window
from cluster_planner.plan import Cluster, Ring
from cluster_planner.predict.objective import averaging_factor, staleness_factor
from cluster_planner.predict.prediction import Forecast, predict
from cluster_planner.predict.schedule_walk import SHORTEST_S
from cluster_planner.predict.stage_times import bottleneck_s, loads_of, wanted_window

WORTHWHILE = 0.01
"""Gains below this part of what the plan is worth are not worth a line of advice."""

MOST_OF = 0.9
"""If one change helps in several sizes, the least is suggested that brings this part of what the best brings."""


TIMES = {"average_every": (2, 4, 8), "update_every": (2, 4)}
"""The multiples of the present value with which these keys are tried."""

MORE = (1, 2, 4)
"""The numbers that are added to max_lag and max_staleness when they are tried."""

FEWEST_ROUNDS = 8
"""No average_every is suggested with which training would have fewer rounds."""

FEW = 12
"""With more clusters, only the first of these is tried: each is predicted for the whole fleet."""

KEYS = {
    "averaging": ("average_every", "max_lag"),
    "round trip": ("max_staleness", "update_every"),
    "flush": ("update_every", "schedule"),
}
"""Kind of limit → the keys of job.yaml that may lift it."""

Tried = Callable[[Workload], tuple[float, float] | None]
"""(samples/s, worth) under a workload; None where it does not fit in memory."""


@dataclass(frozen=True)
class Suggestion:
    """One change; what the fleet would make with it, and be worth (both samples/s); the index of the cluster it is
    about, None where it is about the job; the fleet and the workload with it, where they can be planned anew; what the
    machine or link holds up by now, in words; and with which cuts these figures are, in words.
    """

    words: str
    samples_per_s: float
    worth: float
    cluster: int | None
    changed: tuple[Fleet, Workload] | None = None
    holds_up: str | None = None
    cuts: str = "with the same cuts"


def most_of(sizes: list[Suggestion], worth: float) -> Suggestion | None:
    """Return the size of one change to suggest for a plan of that `worth`, or None if none is worthwhile.

    `sizes` are in order from small to large.
    """
    best = max((one.worth - worth for one in sizes), default=0.0)
    if best <= WORTHWHILE * worth:
        return None
    return next(one for one in sizes if one.worth - worth >= MOST_OF * best)


def most_of_a_round(trained_samples: float, trained_s: float, samples_per_s: float) -> float:
    """Return the largest average_every to suggest, in samples, for training that ends after so many samples or seconds;
    infinite where neither is.
    """
    return min(trained_samples, trained_s * samples_per_s) / FEWEST_ROUNDS


def is_round_capped(work: Workload, clusters: int, most_round: float) -> bool:
    """Say whether no larger average_every may be tried."""
    return TIMES["average_every"][0] * work.round_samples(clusters) > most_round


def job_changes(
    fleet: Fleet,
    spans: SpanCosts,
    clusters: Sequence[Cluster],
    rings: Sequence[Ring],
    forecast: Forecast,
    most_round: float = math.inf,
) -> list[Suggestion]:
    """Return all that are worthwhile: of each key the least value that brings most of what can be had by it.
    `most_round`: no larger average_every is tried, in samples.
    """
    waiting = [i for i, limit in enumerate(forecast.limits) if limit.kind in KEYS]
    waiting = [i for i in waiting if _has_its_window(spans, clusters[i], forecast, i)]
    if _most_gained(fleet, spans, clusters, forecast, waiting) <= WORTHWHILE * forecast.prediction.objective:
        return []
    keys = dict.fromkeys(key for i in waiting for key in KEYS[forecast.limits[i].kind])

    def tried(work: Workload) -> tuple[float, float] | None:
        under = spans.under(work)
        windows = [_with_windows(fleet, under, clusters, forecast)]
        if not work.is_synchronous:
            windows.append(clusters)  # a pipeline that is less full leaves averaging more of its links
        made = [one for several in windows if (one := fitting(fleet, under, several, rings)) is not None]
        return max(made, key=lambda one: one[1], default=None)

    found = (_least(fleet, key, spans.workload, forecast, tried, len(clusters), most_round) for key in keys)
    return [one for one in found if one is not None]


def _has_its_window(spans: SpanCosts, cluster: Cluster, forecast: Forecast, index: int) -> bool:
    """Say whether a cluster waits for what the job says, and not for a window that its memory, or an edit, keeps
    smaller than it wants; give or take one, for what averaging takes.
    """
    now = forecast.prediction.clusters[index]
    wanted = wanted_window(now.bottleneck_s, now.round_trip_s, spans.workload)
    return forecast.limits[index].kind != "round trip" or cluster.window + 1 >= wanted


def _most_gained(
    fleet: Fleet, spans: SpanCosts, clusters: Sequence[Cluster], forecast: Forecast, waiting: Iterable[int]
) -> float:
    """Return what the plan would be worth more if these clusters waited for nothing but their slowest stage or link,
    with nothing averaged: where averaging starves, the links are full of it whatever the pipelines leave.
    """
    work, gained = spans.workload, 0.0
    for i in waiting:
        cluster, now = clusters[i], forecast.prediction.clusters[i]
        counted = fleet.rules.presence_of(stage.node for stage in cluster.stages)
        counted *= staleness_factor(cluster.window, len(cluster.stages), work)
        slowest_s = max(_unaveraged_s(fleet, spans, cluster), SHORTEST_S)
        gained += counted * (work.micro_batch / slowest_s - now.samples_per_s)
    return gained * averaging_factor(len(clusters), work)


def _unaveraged_s(fleet: Fleet, spans: SpanCosts, cluster: Cluster) -> float:
    return bottleneck_s(fleet, cluster.stages, loads_of(fleet, spans, cluster.stages), 0.0)


def _least(
    fleet: Fleet, key: str, work: Workload, forecast: Forecast, tried: Tried, clusters: int, most_round: float
) -> Suggestion | None:
    sizes, now = [], forecast.prediction

    def worth(made: tuple[float, float]) -> float:
        return made[0] * now.efficiency if key == "update_every" else made[1]

    values = list(_values(key, work, clusters, most_round))
    for words, changed in values if clusters <= FEW else values[:1]:
        if (made := tried(changed)) is not None:
            sizes.append(Suggestion(words, made[0], worth(made), None, (fleet, changed)))
    as_it_is = tried(work)  # what other windows alone bring is no gain of the key
    return most_of(sizes, now.objective if as_it_is is None else max(now.objective, worth(as_it_is)))


def _values(key: str, work: Workload, clusters: int, most_round: float) -> Iterable[tuple[str, Workload]]:
    """Return (words, the workload with it), from small to large; only what a job may have."""
    if key == "schedule":
        if 2 * work.update_every > MOST_IN_FLIGHT:
            return
        yield (
            f"schedule async with max_staleness 1 instead of {work.schedule}",
            replace(work, schedule="async", max_staleness=1),
        )
        return
    now = int(getattr(work, key))
    condition = ", if such large updates learn as well," if key == "update_every" else ""
    if key == "average_every":
        values = [value for times in TIMES[key] if (value := round(work.round_samples(clusters)) * times) <= most_round]
    else:
        values = [now * times for times in TIMES[key]] if key in TIMES else [now + more for more in MORE]
        rest = {"update_every": work.max_staleness + 1, "max_staleness": work.update_every}.get(key, 0)
        values = [value for value in values if (value + (key == "max_staleness")) * rest <= MOST_IN_FLIGHT]
    for value in values:
        changed: dict[str, int] = {key: value}
        yield f"{key} {value} instead of {now}{condition}", replace(work, **changed)  # type: ignore[arg-type]


def _with_windows(fleet: Fleet, spans: SpanCosts, clusters: Sequence[Cluster], forecast: Forecast) -> Sequence[Cluster]:
    """Return the clusters with the windows that they want under that workload, as far as they have memory."""
    work, found = spans.workload, []
    for cluster, now in zip(clusters, forecast.prediction.clusters, strict=True):
        if work.is_synchronous:
            window = work.held(len(cluster.stages), 0)
        else:
            window = wanted_window(_unaveraged_s(fleet, spans, cluster), now.round_trip_s, work)
            window = largest_fitting_window(fleet, spans, cluster.stages, window)
        found.append(replace(cluster, window=window))
    return found


def fitting(
    fleet: Fleet, spans: SpanCosts, clusters: Sequence[Cluster], rings: Sequence[Ring]
) -> tuple[float, float] | None:
    """Return (samples/s, worth) of these clusters; None where a stage has not the memory."""
    made = predict(fleet, spans, clusters, rings).prediction
    for cluster, one in zip(clusters, made.clusters, strict=True):
        for stage, needs in zip(cluster.stages, one.stages, strict=True):
            if needs.memory_bytes > fleet.node(stage.node).room_bytes:
                return None
    return made.samples_per_s, made.objective
