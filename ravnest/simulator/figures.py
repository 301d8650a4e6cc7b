"""Reads the figures of a simulated run off its sessions. Pure.

In: the sessions, the last of which ended the run. Out: a `SimulatedRun`. What is told by cluster and stage is of
the last session, whose plan may be another one than that of the first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import chain

from ravnest.pipeline import stage_name
from ravnest.pipeline.time_ledger import KIND_OF_COMPUTE
from ravnest.simulator.session import Session
from ravnest.simulator.simulated_run import Absence, BegunAnew, LostCluster, SimulatedRun, SimulatedStage
from ring_allreduce.transport import Lane

SPANS = 120
"""For how many spans of equal length the throughput is told."""


def read(
    sessions: Sequence[Session],
    *,
    seed: int,
    kept: int,
    begun_anew: tuple[BegunAnew, ...],
    steady_from_s: float,
    wall_s: float,
    stopped_early: bool,
) -> SimulatedRun:
    """Return what came of a run.

    Arguments:
        kept: samples in the checkpoint from which the last session began.
        steady_from_s: when the steady state begins, where the last session has begun by then.
    """
    last = sessions[-1]
    result, run = last.result, last.run
    steady_from_s = max(last.steady_from_s, steady_from_s if len(sessions) > 1 else 0.0)
    steady_s = result.drain_s - steady_from_s
    per_update = last.fleet.update_every * last.fleet.micro_batch
    clusters = {
        name: per_update * _between(times, steady_from_s, result.drain_s) / steady_s if steady_s > 0 else 0.0
        for name, times in last.updated_s.items()
    }
    stages = tuple(
        _stage(last, who, stage.node, steady_s)
        for cluster in last.plan.clusters
        for index, stage in enumerate(cluster.stages)
        if (who := stage_name(cluster.name, index)) in last.at_drain  # one that was to be started may never have been
    )
    # A run without clusters commits no more.
    rounds_s = tuple(
        chain.from_iterable(
            zip(each.run.rounds.opened_s, each.run.rounds.committed_s, strict=False) for each in sessions
        )
    )
    took_s = [committed_s - opened_s for opened_s, committed_s in rounds_s]
    took_s = took_s[:-1] or took_s
    staleness: Counter[int] = Counter()
    for session in sessions:
        for counted in session.result.staleness.values():
            staleness.update(counted)
    samples = kept + run.total_samples
    return SimulatedRun(
        seed=seed,
        samples=samples,
        drain_s=result.drain_s,
        end_s=result.end_s,
        steady_from_s=steady_from_s,
        samples_per_s=sum(clusters.values()),
        overall_samples_per_s=samples / result.end_s if result.end_s > 0 else 0.0,
        goodput_per_s=(kept + last.averaged) / result.end_s if result.end_s > 0 else 0.0,
        clusters=clusters,
        stages=stages,
        staleness=dict(sorted(staleness.items())),
        rounds=sum(len(each.run.rounds.committed_s) for each in sessions),
        averaging_s=sum(took_s) / len(took_s) if took_s else None,
        longest_averaging_s=max(took_s, default=None),
        rounds_s=rounds_s,
        pipeline_bytes=sum(each.run.network.bytes_sent[Lane.PIPELINE] for each in sessions),
        averaging_bytes=sum(each.run.network.bytes_sent[Lane.BULK] for each in sessions),
        lost=_shares_lost(stages),
        stalls=sum(each.stalls for each in sessions),
        clusters_lost=tuple(_lost_cluster(session, absence) for session in sessions for absence in session.absences),
        begun_anew=begun_anew,
        over_time=_over_time(sessions, result.drain_s, per_update),
        events=sum(each.run.clock.events for each in sessions),
        wall_s=wall_s,
        stopped_early=stopped_early,
    )


def _lost_cluster(session: Session, absence: Absence) -> LostCluster:
    averaged = session.run.rounds.averaged[absence.cluster] if absence.averaged is None else absence.averaged
    lost = max(0, absence.made - averaged)  # its last stage, which contributes, may be ahead of its first one
    return LostCluster(
        absence.cluster,
        absence.node,
        absence.silent_from_s,
        absence.lost_s,
        absence.handed + lost,
        absence.back_s,
        absence.nodes,
        absence.with_notice,
    )


def _stage(session: Session, who: str, node: str, steady_s: float) -> SimulatedStage:
    result = session.result
    since, until = session.at_steady.get(who, {}), session.at_drain[who]
    stalled, before = session.run.stalled(who), session.stalled_at_steady.get(who, {})
    cluster, _, _ = who.partition(".")
    away_s = sum(each.away_s(result.drain_s) for each in session.absences if each.cluster == cluster)
    busy_s = sum(until[kind] - since.get(kind, 0.0) for kind in _COMPUTING)
    busy_s -= sum(stalled.get(kind, 0.0) - before.get(kind, 0.0) for kind in _COMPUTING)
    seconds = {state: spent_s - stalled.get(state, 0.0) for state, spent_s in until.items()}
    return SimulatedStage(
        name=who,
        node=node,
        utilisation=max(0.0, min(1.0, busy_s / steady_s)) if steady_s > 0 else 0.0,
        seconds={
            **{k: v for k, v in seconds.items() if v > 0},
            "stalled": sum(stalled.values()),
            **({"away": away_s} if away_s else {}),
        },
        late_s=sum(each.late_s for each in session.run.incarnations(who)),
        staleness=result.staleness[who],
    )


def _between(times: Sequence[float], from_s: float, until_s: float) -> int:
    return bisect_right(times, until_s) - bisect_right(times, from_s)


def _over_time(sessions: Sequence[Session], drain_s: float, per_update: int) -> tuple[tuple[float, float], ...]:
    span_s = drain_s / SPANS
    if span_s <= 0:
        return ()
    made: Counter[int] = Counter()
    for times in (times for session in sessions for times in session.updated_s.values()):
        made.update(min(SPANS - 1, int(at_s / span_s)) for at_s in times if at_s <= drain_s)
    return tuple(((span + 1) * span_s, made[span] * per_update / span_s) for span in range(SPANS))


_COMPUTING = tuple(dict.fromkeys(KIND_OF_COMPUTE.values()))


def _shares_lost(stages: tuple[SimulatedStage, ...]) -> dict[str, float]:
    """Returns the share of all stages' time that was lost, by cause. Jitter counts as computing, less what it saved."""
    total: Counter[str] = Counter()
    for stage in stages:
        total.update(stage.seconds)
    whole_s = sum(total.values())
    lost = {cause: spent_s / whole_s for cause, spent_s in total.items() if cause not in _COMPUTING and spent_s > 0}
    late_s = sum(stage.late_s for stage in stages)
    return {**lost, **({"jitter": late_s / whole_s} if late_s else {})} if whole_s > 0 else {}
