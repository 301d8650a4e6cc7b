"""Where the samples go that a run through a trace does not make, of those of the best plan at each moment. Pure.

In: the rates of the best plans (baseline.py) and the simulated run. Out: by phase, the missing samples as a share of
the best plan's. All phases together are what is missing. What the run made is known by spans of its time, and is spread
evenly over the part of a span in which a session trained.
"""

from collections.abc import Sequence
from itertools import pairwise

from experiments.churn.baseline import Rates, samples_of
from ravnest.simulator import SimulatedRun

UNKNOWN, PAUSED, AWAY, THERE, LOST, ROLLED_BACK, REST = (
    "what nobody can know of: a node has gone, or has just come",
    "nobody trains: the run begins again",
    "some cluster is away or silent",
    "all clusters of the plan train",
    "made, and not averaged when a cluster was lost",
    "averaged since the checkpoint from which the run began again",
    "after the end, and rounding",
)

Span = tuple[float, float]


def missing_samples(best: Rates, known: Rates, run: SimulatedRun, seconds: float) -> dict[str, float]:
    """Return the missing samples by phase, as shares of those that the `best` plans make until `seconds`.

    `known`: the rates of the best plans for the nodes that anybody can know of.
    """
    total, knowable = samples_of(best, seconds), samples_of(known, seconds)
    found = dict.fromkeys((UNKNOWN, PAUSED, AWAY, THERE, LOST, ROLLED_BACK, REST), 0.0)
    if not total:
        return found
    found[UNKNOWN] = total - knowable
    pauses = [(each.lost_s, each.began_s) for each in run.begun_anew]
    absences = [(each.silent_from_s, _end_of(each.lost_s, each.back_s, pauses, seconds)) for each in run.clusters_lost]
    rates = _made(run, pauses)
    marks = {0.0, seconds, *(at_s for at_s, *_ in (*known, *rates) if at_s < seconds)}
    marks |= {at_s for span in (*pauses, *absences) for at_s in span if 0.0 <= at_s < seconds}
    for from_s, until_s in pairwise(sorted(marks)):
        middle_s = (from_s + until_s) / 2
        phase = PAUSED if _inside(pauses, middle_s) else AWAY if _inside(absences, middle_s) else THERE
        made = 0.0 if phase == PAUSED else _at(rates, middle_s)
        found[phase] += (until_s - from_s) * (_at([each[:2] for each in known], middle_s) - made)
    found[LOST] = sum(each.samples for each in run.clusters_lost)
    found[ROLLED_BACK] = sum(each.samples for each in run.begun_anew)
    found[REST] = total - run.goodput_per_s * run.end_s - sum(found.values())
    return {phase: samples / total for phase, samples in found.items()}


def _made(run: SimulatedRun, pauses: Sequence[Span]) -> list[tuple[float, float]]:
    """From when on so many samples/s were made, while a session trained."""
    found, from_s = [], 0.0
    for until_s, rate in run.over_time:
        paused_s = sum(max(0.0, min(end_s, until_s) - max(start_s, from_s)) for start_s, end_s in pauses)
        trained_s = until_s - from_s - paused_s
        found.append((from_s, rate * (until_s - from_s) / trained_s if trained_s > 0 else 0.0))
        from_s = until_s
    return [*found, (from_s, 0.0)]


def _end_of(lost_s: float, back_s: float | None, pauses: Sequence[Span], seconds: float) -> float:
    """Until when a cluster was away: one that did not come back is of another plan after the next beginning."""
    ends_s = [start_s for start_s, _ in pauses if start_s >= lost_s]
    return back_s if back_s is not None else min([*ends_s, seconds])


def _inside(spans: Sequence[Span], at_s: float) -> bool:
    return any(from_s <= at_s < until_s for from_s, until_s in spans)


def _at(rates: Sequence[tuple[float, float]], at_s: float) -> float:
    """The last rate that began by then."""
    return next((rate for from_s, rate in reversed(rates) if from_s <= at_s), 0.0)
