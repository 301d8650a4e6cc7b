"""Recorded preemptions of rented GPUs and sessions of home machines, simulated at full length.

Each run is simulated by the code that decides in a run (ravnest/recovery): lost clusters start anew on their nodes, on
spares, or cut anew; where no cluster is left, the run begins again from its last checkpoint. Beside it stands the best
plan for the nodes alive at each moment (baseline.py), and what of it is knowable: the best plan, with no other cost,
where a node counts 15 s after it came, and a cluster whose node has gone makes nothing until that is noticed, which no
system can do without. Planned anew: the run goes on by another plan as soon as that pays (recovery/replanning.py), as
`ravnest run` does by itself; otherwise only single clusters are. Planning takes no time. Starting takes 15 s each time;
a node that goes unsaid is noticed after 20 s. At ten times the speed nodes stay for eleven minutes, and the job
averages four times as often.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from cluster_planner import Fleet, ModelCosts, Plan, Workload, make_plan
from experiments.churn.baseline import Rates, best_rates, knowable_rates, samples_of
from experiments.churn.fleets import (
    GPUS,
    ROUNDS_SAVED,
    Planner,
    alike_planner,
    home_fleet,
    home_model,
    model,
    remembering_planner,
    rented,
    rented_fleet,
    sessions,
    work,
)
from experiments.churn.missing_samples import missing_samples
from experiments.harness.report import Claim, Panel, Part, Series, Table
from ravnest.simulator import NodeChange, Scenario, SimulatedRun, simulate

TARGET = 0.95
SEED = 1
NOTICED_S = 20.0
NOTICE_S = 30.0
FEW = 4
"""So many nodes can train the model."""
HOME_NODES, HOME_HOURS, HOME_MEAN_H, HOME_LONGEST_H = 8, 24.0, 4.0, 21.0


@dataclass(frozen=True)
class Row:
    """One simulated run, and what it is measured against."""

    name: str
    notice: str
    replanned: bool
    seconds: float
    best: float
    """Samples of the best plan for the nodes alive at each moment."""
    known: Rates
    """Of the best plan for the nodes that anybody can know of (baseline.py)."""
    run: SimulatedRun
    alive: Rates

    @property
    def knowable(self) -> float:
        """Samples of the best plan for the nodes that anybody can know of."""
        return samples_of(self.known, self.seconds)

    @property
    def share(self) -> float:
        """Samples in the anchor at the end, of those that the best plan would have made."""
        return self._kept / self.best if self.best else 0.0

    @property
    def share_of_knowable(self) -> float:
        """The same, of those of the best plan for the nodes that anybody can know of."""
        return self._kept / self.knowable if self.knowable else 0.0

    @property
    def _kept(self) -> float:
        return self.run.goodput_per_s * self.run.end_s


def _plan(
    kind: str, fleet: Fleet, costs: ModelCosts, workload: Workload, planner: Planner, names: Sequence[str]
) -> Plan:
    """A plan for these of the nodes, on which the planners go on.

    They take from it what it was made of, and not its clusters (`plan_for`), so one of few nodes is made first.
    """
    few = make_plan(
        Fleet(tuple(node for node in fleet.nodes if node.name in names[:FEW]), fleet.links, fleet.regions),
        costs,
        workload,
        job={"evaluate_every": ROUNDS_SAVED * workload.average_every},
        job_file="generated",
    )
    return planner(replace(few, fleet=fleet, spares=()), names)


def _names(changes: Sequence[NodeChange]) -> list[str]:
    return list(dict.fromkeys(change.node for change in changes))


def _present(changes: Sequence[NodeChange]) -> list[str]:
    """The nodes that are there as soon as enough of them are: at the moment at which the recording begins."""
    return [change.node for change in changes if change.kind == "back" and change.at_s <= changes[0].at_s]


def started(changes: Sequence[NodeChange], least: int) -> tuple[NodeChange, ...]:
    """Return the changes from the moment on at which `least` nodes are there, which is 0 s then."""
    there: set[str] = set()
    for at_s, moment in groupby(changes, key=lambda change: change.at_s):  # many come in one moment
        from_s = at_s
        for change in moment:
            if change.kind == "back":
                there.add(change.node)
            elif change.kind == "gone":
                there.discard(change.node)
        if len(there) >= least:
            break
    else:
        return tuple(changes)
    first = [NodeChange(0.0, node, "back", why="it is there") for node in sorted(there)]
    later = [replace(each, at_s=each.at_s - from_s) for each in changes if each.at_s > from_s]
    return (*first, *later)


IDEAL = {kind: alike_planner() for kind in GPUS}
"""One for each kind of machine, whatever the speed of its trace: what it has planned once, it knows."""


def stay_s(changes: Sequence[NodeChange]) -> float:
    """Return for how long a node stays on average: its `mtbf_hours`. Those that are there at the end stay till then."""
    end_s, came, total = changes[-1].at_s, {change.node: 0.0 for change in changes}, 0.0
    gone = 0
    for change in changes:
        if change.kind == "back":
            came[change.node] = change.at_s
        elif change.kind == "gone":
            gone += 1
            total += change.at_s - came.pop(change.node)
    return (total + sum(end_s - at_s for at_s in came.values())) / max(1, gone)


def rented_rows(kind: str, *, speed: float, cases: Sequence[tuple[float, bool]], share: float = 1.0) -> list[Row]:
    """Simulate a trace. `cases`: (seconds of notice, whether it is planned anew); `share`: how much of the trace."""
    ideal, planner, rows = IDEAL[kind], alike_planner(), []
    for notice_s, anew in cases:
        recorded = rented(kind, speed=speed, notice_s=notice_s, noticed_after_s=NOTICED_S)
        changes = started(recorded, FEW)
        seconds = share * changes[-1].at_s
        names, present, job = _names(changes), _present(changes), work(kind, often=speed > 1)
        best = _plan(kind, rented_fleet(kind, names), model(), job, ideal, present)
        rates = best_rates(best, changes, seconds, ideal)
        known = knowable_rates(best, changes, seconds, ideal, Scenario().restart_s)
        fleet = rented_fleet(kind, names, stay_s(changes))
        plan = _plan(kind, fleet, model(), job, planner, present)
        run = simulate(plan, Scenario(trace=changes, plans_anew=anew), seconds=seconds, planner=planner)
        said = f"{notice_s:g} s" if notice_s else "none"
        name = f"{kind}, {speed:g}x" if speed != 1 else kind
        rows.append(Row(name, said, anew, seconds, samples_of(rates, seconds), known, run, rates))
    return rows


def home_rows(*, hours: float, cases: Sequence[bool]) -> list[Row]:
    """Simulate home sessions. `cases`: whether it is planned anew."""
    ideal, planner, rows = remembering_planner(), remembering_planner(), []
    changes = sessions(HOME_NODES, hours, HOME_MEAN_H, HOME_LONGEST_H, SEED)
    seconds = 3600.0 * hours
    names, present, job = _names(changes), _present(changes), work("home")
    best = _plan("home", home_fleet(names, SEED), home_model(), job, ideal, present)
    rates = best_rates(best, changes, seconds, ideal)
    known = knowable_rates(best, changes, seconds, ideal, Scenario().restart_s)
    plan = _plan("home", home_fleet(names, SEED, HOME_MEAN_H * 3600), home_model(), job, planner, present)
    for anew in cases:
        run = simulate(plan, Scenario(trace=changes, plans_anew=anew), seconds=seconds, planner=planner)
        rows.append(Row("home sessions", "none", anew, seconds, samples_of(rates, seconds), known, run, rates))
    return rows


def rented_part(kind: str, speed: float, *, quick: bool) -> Part:
    """A recorded trace at its own speed or a multiple of it, or with `quick` the beginning of it."""
    cases = [(0.0, True)] if quick else [(0.0, False), (0.0, True)]
    cases += [(NOTICE_S, True)] if speed == 1 and not quick else []
    rows = rented_rows(kind, speed=speed, cases=cases, share=0.002 * speed if quick else 1.0)
    return _part(kind if speed == 1 else f"{kind}_fast", rows, quick=quick)


def home_part(*, quick: bool) -> Part:
    """Home sessions, or with `quick` an hour of them."""
    rows = home_rows(hours=1.0, cases=[True]) if quick else home_rows(hours=HOME_HOURS, cases=[False, True])
    return _part("homes", rows, quick=quick)


_TITLES = {
    "g4dn_fast": "Recorded preemptions of T4s, ten times as fast",
    "p3_fast": "Recorded preemptions of V100s, ten times as fast",
    "g4dn": "Recorded preemptions of T4s",
    "p3": "Recorded preemptions of V100s",
    "homes": "Sessions of home machines",
}


def _part(kind: str, rows: Sequence[Row], *, quick: bool) -> Part:
    claims = [
        Claim(
            _name(row),
            f"{row.name} (notice: {row.notice}): samples of the best plan for the nodes alive at each moment",
            f"at least {TARGET:.0%}",
            f"{row.share:.1%}",
            None if quick else row.share >= TARGET,
        )
        for row in rows
    ]
    return Part(
        name=kind,
        title=_TITLES[kind],
        claims=claims,
        tables=[
            Table(
                "Simulated runs",
                (
                    "trace",
                    "notice",
                    "planned anew",
                    "hours",
                    "nodes, mean",
                    "samples kept",
                    "of the best",
                    "the knowable, of the best",
                    "of the knowable",
                    "clusters lost",
                    "samples lost with them",
                    "no cluster left",
                    "planned anew on purpose",
                    "seconds to train again, median",
                    "events",
                ),
                [_row(row) for row in rows],
            ),
            Table("What is missing of the best plan", ("when", *map(_name, rows)), _missing(rows)),
        ],
        panels=[_panel(row) for row in rows if row.replanned and row.notice == "none"][:4],
        notes=[" ".join((__doc__ or "").split("\n\n")[1].split())],
    )


def _name(row: Row) -> str:
    return f"{row.name}{', notice' if row.notice != 'none' else ''}{', planned anew' if row.replanned else ''}"


def _missing(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """By phase, what is missing in each run, as a share of what the best plan would have made."""
    found = [missing_samples(row.alive, row.known, row.run, row.seconds) for row in rows]
    return [(phase, *(f"{each[phase]:.1%}" for each in found)) for phase in (found[0] if found else ())]


def _row(row: Row) -> tuple[str | int | float | None, ...]:
    run = row.run
    took = sorted(each.back_s - each.lost_s for each in run.clusters_lost if each.back_s is not None)
    ends = [*(at_s for at_s, _, _ in row.alive[1:]), row.seconds]
    node_s = sum(count * (until_s - at_s) for (at_s, _, count), until_s in zip(row.alive, ends, strict=True))
    return (
        row.name,
        row.notice,
        "yes" if row.replanned else "no",
        round(row.seconds / 3600, 2),
        round(node_s / row.seconds, 1),
        round(run.goodput_per_s * run.end_s),
        f"{row.share:.1%}",
        f"{row.knowable / row.best:.1%}" if row.best else None,
        f"{row.share_of_knowable:.1%}",
        len(run.clusters_lost),
        sum(each.samples for each in run.clusters_lost),
        sum(not each.on_purpose for each in run.begun_anew),
        sum(each.on_purpose for each in run.begun_anew),
        round(took[len(took) // 2], 1) if took else None,
        run.events,
    )


def _panel(row: Row) -> Panel:
    made = row.run.over_time
    ends = [*(at_s for at_s, _, _ in row.alive[1:]), row.seconds]
    best = [
        sum(
            rate * max(0.0, min(until_s, end_s) - max(at_s, start_s))
            for (at_s, rate, _), until_s in zip(row.alive, ends, strict=True)
        )
        / (end_s - start_s)
        for start_s, end_s in zip([0.0, *(end_s for end_s, _ in made)], [end_s for end_s, _ in made], strict=False)
    ]
    hours = [end_s / 3600 for end_s, _ in made]
    return Panel(
        f"{row.name}",
        "hours",
        "samples/s",
        [Series("best plan", hours, best), Series("simulated", hours, [rate for _, rate in made])],
    )
