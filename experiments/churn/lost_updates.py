"""Where the samples go that a run with faults does not make, by counting updates. Pure, but for `watched`.

In: when clusters made their updates, undisturbed and with faults, and when they were away. Out: by phase, the updates
that are missing, as a share of all of the undisturbed run. A cluster's missing updates in a span of time are those that
it makes undisturbed in so many seconds, less those that it made.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from cluster_planner import Plan
from ravnest.recovery import plan_for
from ravnest.simulator import Scenario
from ravnest.simulator.presence import Presence
from ravnest.simulator.session import Session
from ravnest.simulator.simulated_run import Absence

AFTER_S = 15.0
"""For so long after a cluster trains again it is counted what is still missing."""

SILENT, AWAY, AGAIN, OTHERS, USUAL = (
    "before it is told that a process has ended",
    "while the cluster is away",
    f"of the cluster, {AFTER_S:g} s from when it trains again",
    f"of the others, from the loss until {AFTER_S:g} s after it trains again",
    "at other times",
)

Updates = Mapping[str, Sequence[float]]
"""By cluster: when it made its updates, in order."""


def watched(plan: Plan, scenario: Scenario, seconds: float) -> tuple[Updates, Sequence[Absence]]:
    """Simulate one session, in which some cluster always trains. Returns its updates and absences."""
    session = Session(plan, scenario, Presence(plan.fleet.names, ()), None, planner=plan_for, seed=0)
    session.train(None, seconds, steady=0.0)
    return session.updated_s, session.absences


def missing(free: Updates, made: Updates, absences: Sequence[Absence], seconds: float) -> dict[str, float]:
    """Return the shares of the updates of the undisturbed run `free` that are missing among those `made`, by phase."""
    found = dict.fromkeys((SILENT, AWAY, AGAIN, OTHERS, USUAL), 0.0)
    spans = [(each.cluster, each.silent_from_s, each.lost_s, each.back_s or seconds) for each in absences]
    marks = {0.0, seconds, *(at_s for _, *three in spans for at_s in (*three, three[2] + AFTER_S) if at_s < seconds)}
    for cluster, updates in made.items():
        rate = len([at_s for at_s in free.get(cluster, ()) if at_s <= seconds]) / seconds
        for from_s, until_s in zip(sorted(marks), sorted(marks)[1:], strict=False):
            count = bisect_right(updates, until_s) - bisect_right(updates, from_s)
            found[_phase(cluster, (from_s + until_s) / 2, spans)] += (until_s - from_s) * rate - count
    total = sum(len([at_s for at_s in each if at_s <= seconds]) for each in free.values())
    return {phase: updates / total for phase, updates in found.items()}


def _phase(cluster: str, at_s: float, spans: Sequence[tuple[str, float, float, float]]) -> str:
    phase = USUAL
    for lost, silent_s, lost_s, back_s in spans:
        if lost == cluster and silent_s <= at_s < lost_s:
            return SILENT
        if lost == cluster and lost_s <= at_s < back_s:
            return AWAY
        if lost == cluster and back_s <= at_s < back_s + AFTER_S:
            phase = AGAIN
        elif lost_s <= at_s < back_s + AFTER_S and phase == USUAL:
            phase = OTHERS
    return phase
