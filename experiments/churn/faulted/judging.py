"""What the injected faults came to, as tables and claims. Pure.

In: a record for each fault and for each run's end. Out: a Part.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from experiments.churn.faulted.listed import KINDS, MOMENTS
from experiments.harness.report import Cell, Claim, Part, Table

Record = Mapping[str, Any]
WANTED = 300
CLOSE = 0.02
ROUND_SAMPLES = 128
"""The fleet's samples between two rounds, as in job/job.yaml."""
CLUSTER_SAMPLES = ROUND_SAMPLES // 2
"""What each of its two clusters gives to a round while both train."""
AT_ONCE_S = 5.0


def judged(records: Sequence[Record], *, quick: bool, note: str) -> Part:
    """Judge all faults so far. With `quick` nothing is judged."""
    faults = [one for one in records if "kind" in one]
    ends = [one for one in records if "end" in one]
    alone = [one["loss"] for one in records if one.get("undisturbed") and one.get("loss") is not None]
    whole = not quick and len(faults) >= WANTED
    hung = [one for one in [*faults, *ends] if one["hung"]]
    ended = [one for one in faults if one["ended"]]
    off = {one["end"]: abs(one["loss"] / alone[0] - 1) for one in ends if alone and one.get("loss") is not None}
    broken = [one["end"] for one in ends if one["end"] not in off and not one["hung"]]
    lost = [max(_lost(one), default=0) for one in faults]
    killed = [
        one["silent_s"][0] for one in faults if one["kind"] == "kill" and one["moment"] != "start" and one["silent_s"]
    ]
    claims = [
        Claim("faults", "faults injected so far", f"at least {WANTED}", str(len(faults)), whole or None),
        _claim("none hung", "faults after which the run did not go on", "0", str(len(hung)), not hung, whole),
        _claim("none ended", "faults that ended the command", "0", str(len(ended)), not ended, whole),
        _claim(
            "none corrupt",
            "runs whose result is missing or differs by more than 2 % from an undisturbed one",
            "0",
            f"{len(broken) + sum(each > CLOSE for each in off.values())} of {len(ends)}; the furthest by "
            f"{max(off.values(), default=0.0):.2%}",
            not broken and all(each <= CLOSE for each in off.values()),
            whole,
        ),
        _claim(
            "samples",
            "the most samples that were lost with a cluster, in rounds of the fleet",
            "at most 1",
            f"{max(lost, default=0) / ROUND_SAMPLES:.2f}",
            max(lost, default=0) <= ROUND_SAMPLES,
            whole,
        ),
        _claim(
            "of one cluster",
            f"the same in rounds of one cluster, which are {CLUSTER_SAMPLES} samples while both train",
            "at most 1",
            f"{max(lost, default=0) / CLUSTER_SAMPLES:.2f}; {sum(each > CLUSTER_SAMPLES for each in lost)} of "
            f"{len(faults)} faults took more",
            max(lost, default=0) <= CLUSTER_SAMPLES,
            whole,
        ),
        _claim(
            "at once",
            "the longest until a killed stage was called lost, s",
            f"at most {AT_ONCE_S:g}",
            f"{max(killed, default=0.0):.2f} of {len(killed)}",
            max(killed, default=0.0) <= AT_ONCE_S,
            whole,
        ),
    ]
    return Part(
        name="faults",
        title="Faults that are injected into real runs",
        claims=claims,
        tables=[_seconds(faults), _kinds(faults)],
        notes=[note, *_told(faults, ends)],
    )


def _claim(name: str, statement: str, target: str, measured: str, held: bool, whole: bool) -> Claim:
    """A claim that fails as soon as it is broken, and holds only of the whole experiment."""
    return Claim(name, statement, target, measured, (held if whole else None) if held else False)


def _seconds(faults: Sequence[Record]) -> Table:
    rows: list[list[Cell]] = []
    for kind in KINDS:
        row: list[Cell] = [kind]
        for moment in MOMENTS:
            took = [
                one["seconds"] for one in faults if (one["kind"], one["moment"]) == (kind, moment) if "seconds" in one
            ]
            row.append(f"{statistics.median(took):.1f} ({max(took):.1f}, {len(took)})" if took else None)
        rows.append(row)
    title = "Seconds in which the cluster of the stage made no update: median (longest, faults)"
    return Table(title, ("fault", *MOMENTS), rows)


def _kinds(faults: Sequence[Record]) -> Table:
    rows: list[list[Cell]] = []
    for kind in KINDS:
        mine = [one for one in faults if one["kind"] == kind]
        events = [event for one in mine for event in one["events"]]
        rows.append(
            [
                kind,
                len(mine),
                sum(one["hung"] for one in mine),
                sum(bool(one["ended"]) for one in mine),
                sum(len(one["lost"]) for one in mine),
                sum(sum(_lost(one)) for one in mine),
                _since_checkpoints(mine),
                events.count("restarted"),
                events.count("taken_over"),
            ]
        )
    columns = ("fault", "injected", "hung", "ended the command", "clusters lost", "samples lost with them")
    again = ("samples since the checkpoint, where begun again", "begun again", "taken over")
    return Table("What they cost", (*columns, *again), rows)


def _lost(fault: Record) -> Sequence[int]:
    """The samples that were lost with each cluster: those that it made again, where that was noted, which are at most
    what the run called lost."""
    said: Sequence[int] = fault.get("made_again", fault["lost"])
    return said


def _since_checkpoints(faults: Sequence[Record]) -> Cell:
    """The samples that were made after the checkpoints from which runs began again; None where no run told them."""
    told = [samples for one in faults for samples in one.get("since_checkpoint", ())]
    return sum(told) if any("since_checkpoint" in one for one in faults) else None


def _told(faults: Iterable[Record], ends: Iterable[Record]) -> list[str]:
    """Each fault that hung or ended a run, and each run without a result, in words."""
    said = []
    for one in faults:
        what = f"fault {one['number']} ({one['kind']} at {one['moment']}, {one.get('target', 'nobody')})"
        if one["hung"]:
            said.append(f"{what} hung the run.")
        elif one["ended"]:
            said.append(f"{what} ended the command, which was started again: {one['ended']}")
    said += [f"run {one['end']} came to no result." for one in ends if one.get("loss") is None]
    return said
