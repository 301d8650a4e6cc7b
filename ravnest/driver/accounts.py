"""How much each cluster has made, and how much of it is in the anchor: no sample counts twice. Pure.

In: updates, snapshots and commits, by cluster. Out: the samples of the fleet, and what is lost with a cluster. A
cluster's updates count from the run's first start. What a cluster that is lost had not averaged does not count: one
that begins in its place goes on from the update of its last averaged snapshot, and reads the same samples again.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from ravnest.driver.standing import Standing


@dataclass(frozen=True)
class RunShape:
    """What the control needs to know of a run. Samples are the fleet's, counted from the run's first start."""

    clusters: Mapping[str, int]
    """By name: the number of stages."""
    evaluators: tuple[str, ...]
    """All clusters, the fastest first: the first that is not lost evaluates."""
    samples_per_update: int
    """Samples that one cluster takes for one update."""
    stop_samples: int | None
    """The run ends when the fleet has made so many samples; None: it ends by time."""
    stop_s: float | None
    """The run ends after so many seconds of training; None: it ends by samples."""
    evaluate_every: int
    """Samples between two evaluations, and between two checkpoints."""
    held_out_batches: int
    """Batches of the held-out set; 0: nothing is evaluated."""
    stands_by: bool = False
    """Whether the other stages of a lost cluster keep their state, to join again with those that are started anew."""
    hands_on: bool = True
    """Whether clusters that leave may hand on what they have made: not where rounds compare what members give."""
    start_samples: int = 0
    """Samples that were made before a resume."""
    start_updates: Mapping[str, int] = field(default_factory=dict)
    """Updates that each cluster had made before a resume."""
    start_unmade: Mapping[str, int] = field(default_factory=dict)
    """Of them, by cluster that had come during the run: those that are counted and that nobody made."""


class ResumePosition(Protocol):
    """How far a resumed run has come."""

    @property
    def samples(self) -> int:
        """Samples of the fleet behind the checkpoint's anchor."""
        ...

    @property
    def updates(self) -> Mapping[str, int]:
        """Updates of each cluster at its snapshot for the checkpoint."""
        ...

    @property
    def unmade(self) -> Mapping[str, int]:
        """By cluster that had come during the run: those of its updates that are counted and that nobody made."""
        ...


@dataclass(frozen=True)
class _HandedOn:
    """What a cluster had made when it left, and another one gives to a round."""

    cluster: str
    base: int
    """Its updates that were averaged already."""
    updates: int
    to: str
    round: int | None = None
    """The first round that the other may give it to; None while that is not known."""
    begun: bool = False
    """Whether a cluster has gone on from these updates since."""


class SampleAccounts:
    """The updates of all clusters of a run."""

    def __init__(self, shape: RunShape, standing: Standing | None = None) -> None:
        """`standing`: where the session stands that another driver has begun."""
        self._shape = shape
        self._start = {name: shape.start_updates.get(name, 0) for name in shape.clusters}
        """By cluster: the updates from which it counts in this session."""
        self._unmade = dict(shape.start_unmade)
        self._updates = dict(self._start)
        self._averaged = dict(self._updates)
        self._snapshots: dict[int, dict[str, int]] = {}
        """By round that is not committed, and cluster: its updates at its snapshot for the round."""
        self._orphaned: set[tuple[int, str]] = set()
        """Those of them that were taken by a cluster that is lost since."""
        self._handed_on: list[_HandedOn] = []
        if standing is not None:
            self._start |= standing.begun
            self._unmade |= standing.unmade
            self._updates |= standing.updates
            self._averaged |= standing.averaged
            self._snapshots = {round_: dict(taken) for round_, taken in standing.snapshots.items()}
            gone = self._updates.keys() - set(standing.clusters)
            self._orphaned = {
                (round_, name) for round_, taken in self._snapshots.items() for name in gone & taken.keys()
            }

    @property
    def begun(self) -> dict[str, int]:
        """By cluster: the updates from which it counts in this session, which others made before it came."""
        return dict(self._start)

    @property
    def unmade(self) -> dict[str, int]:
        """By cluster that came during the run: the updates from which its schedule began, which nobody made."""
        return dict(self._unmade)

    @property
    def snapshots(self) -> dict[int, dict[str, int]]:
        """A copy of each cluster's updates at its snapshots for the rounds that are not committed."""
        return {round_: dict(taken) for round_, taken in self._snapshots.items()}

    @property
    def updates(self) -> Mapping[str, int]:
        """Each cluster's updates so far; of a lost cluster, those that were averaged."""
        return self._updates

    @property
    def averaged(self) -> dict[str, int]:
        """A copy of each cluster's updates at its snapshot for the last round that was committed."""
        return dict(self._averaged)

    @property
    def samples(self) -> int:
        """Samples that the fleet has trained on, earlier sessions of the run included."""
        return self.samples_of(self._updates)

    @property
    def session_samples(self) -> int:
        """Samples that the fleet has trained on in this session."""
        return self.samples - self._shape.start_samples

    def samples_of(self, updates: Mapping[str, int]) -> int:
        """Samples that the fleet has trained on when each cluster has made so many `updates`, lost ones included."""
        made = sum(n - self._start[name] for name, n in updates.items())
        return self._shape.start_samples + made * self._shape.samples_per_update

    def rest_s(self, elapsed_s: float) -> float:
        """For how long training goes on, at the speed of the session so far; infinite where that is not known."""
        ends = [math.inf]
        if self._shape.stop_s is not None:
            ends.append(self._shape.stop_s - elapsed_s)
        if self._shape.stop_samples is not None and self.session_samples > 0:
            ends.append((self._shape.stop_samples - self.samples) * elapsed_s / self.session_samples)
        return max(0.0, min(ends))

    def made_by(self, cluster: str) -> int:
        """Samples that one cluster has trained on in this session."""
        return (self._updates[cluster] - self._start[cluster]) * self._shape.samples_per_update

    def expected(self, cluster: str, share: tuple[float, float]) -> None:
        """A cluster is to come. One that the run did not have begins at the update that it would have made, had it had
        this share of all samples, so that its learning rate is that of the others."""
        if cluster not in self._updates:
            updates = round(self.samples * (share[1] - share[0]) / self._shape.samples_per_update)
            self._start[cluster] = self._updates[cluster] = self._averaged[cluster] = updates
            self._unmade[cluster] = updates

    def updated(self, cluster: str, updates: int) -> None:
        """The cluster has made so many updates; news of fewer came late."""
        self._updates[cluster] = max(self._updates[cluster], updates)

    def drained(self, cluster: str, updates: int) -> None:
        """The cluster has made just so many updates, and makes no more."""
        self._updates[cluster] = updates

    def snapshot(self, round_: int, cluster: str, updates: int) -> None:
        """The cluster has contributed to a round what it had made in so many updates."""
        self._snapshots.setdefault(round_, {})[cluster] = updates

    def handed_on(self, cluster: str, to: str) -> None:
        """The cluster is about to be out, and another one has all that it had made."""
        self._handed_on.append(_HandedOn(cluster, self._averaged[cluster], self._updates[cluster], to))

    def is_given(self, cluster: str, round_: int) -> None:
        """What the cluster had made is given to the round `round_` or a later one."""
        self._handed_on = [
            replace(each, round=round_) if each.cluster == cluster and each.round is None else each
            for each in self._handed_on
        ]

    def settled(self, cluster: str) -> bool:
        """Whether it is known of each round that a lost cluster had contributed to whether that counts."""
        return all(name != cluster for _, name in self._orphaned)

    def holds(self, cluster: str) -> bool:
        """Whether a cluster has still to give to a round what another one had made."""
        return any(each.to == cluster for each in self._handed_on)

    def goes_on_at(self, cluster: str) -> int:
        """The updates from which a cluster goes on that begins in the place of a lost one."""
        return max([self._averaged[cluster], *(e.updates for e in self._handed_on if e.cluster == cluster)])

    def begins(self, cluster: str) -> int:
        """A cluster begins in the place of a lost one. Returns the updates from which it goes on."""
        self._handed_on = [replace(e, begun=True) if e.cluster == cluster else e for e in self._handed_on]
        return self.goes_on_at(cluster)

    def restarted(self, kept: Collection[int]) -> None:
        """Rounds that are not `kept` start again, without what clusters gave to them that were lost since."""
        for round_, name in {each for each in self._orphaned if each[0] not in kept}:
            self._snapshots[round_].pop(name, None)
            self._orphaned.discard((round_, name))

    def committed(self, round_: int) -> None:
        """A round is committed. What a cluster gave to it counts, even one that is lost since."""
        taken = self._snapshots.pop(round_, {})
        self._averaged |= taken
        given = [each for each in self._handed_on if each.round is not None and each.round <= round_]
        self._handed_on = [each for each in self._handed_on if each not in given]
        for each in given:
            self._averaged[each.cluster] = max(each.updates, self._averaged[each.cluster])
        for name, updates in taken.items():
            if (round_, name) in self._orphaned:
                self.updated(name, updates)
        for stale in [r for r in self._snapshots if r < round_]:
            del self._snapshots[stale]
        self._orphaned = {each for each in self._orphaned if each[0] > round_}

    def dropped(self, cluster: str) -> int:
        """The cluster is lost. Returns the samples that it had trained on and that are in no committed round."""
        lost = self._updates[cluster] - self.goes_on_at(cluster)
        self._updates[cluster] = self.goes_on_at(cluster)
        lost += sum(self._undone(each) for each in self._handed_on if each.to == cluster)
        self._handed_on = [each for each in self._handed_on if each.to != cluster]
        self._orphaned |= {(round_, cluster) for round_, taken in self._snapshots.items() if cluster in taken}
        return lost * self._shape.samples_per_update

    def _undone(self, gone: _HandedOn) -> int:
        """What a cluster had handed on is lost with the one that had it. Returns how many updates that are.

        Where the cluster has not begun again it makes them anew. One that has gone on does not: they count no more.
        """
        updates = gone.updates - max(gone.base, min(self._averaged[gone.cluster], gone.updates))
        if gone.begun:
            self._start[gone.cluster] += updates
            self._unmade[gone.cluster] = self._unmade.get(gone.cluster, 0) + updates
        else:
            self._updates[gone.cluster] -= updates
        return updates
