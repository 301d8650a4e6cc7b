"""The clusters that are in a run and do not train yet: they follow the rounds until all their stages hold the anchor.

In: epochs, commits, checkpoints and reports of stages. Out: who is to be given the anchor by members of its rings;
where none can, which round is to be saved for it and whom to hand it; and whose stages hold it. Pure. A newcomer takes
part in rounds from some first one on, so the anchor of the round before that, or of any later one, and the averages
that it has since, make today's anchor.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ravnest.pipeline import stage_place


@dataclass
class _Newcomer:
    missing: set[str]
    """Its stages that do not hold the anchor yet."""
    first_round: int | None = None
    """The first round that it takes part in; None before its epoch has begun."""
    from_checkpoint: bool = False
    """Whether no member of its rings can give it all, so that it waits for a checkpoint."""
    state_of: int | None = None
    """The round whose state it is to get; None while none is on its way to a checkpoint."""


@dataclass
class Newcomers:
    """The clusters that have joined and do not train yet."""

    _clusters: dict[str, _Newcomer] = field(default_factory=dict)
    _patient: bool = False
    """Whether the last checkpoint could not be written: then the next regular one is waited for."""

    def __contains__(self, cluster: str) -> bool:
        return cluster in self._clusters

    @property
    def names(self) -> tuple[str, ...]:
        """The names of these clusters, in the order in which they came."""
        return tuple(self._clusters)

    def add(self, cluster: str, stages: Iterable[str]) -> None:
        """A cluster of these stages has come."""
        self._clusters[cluster] = _Newcomer(set(stages))

    def remove(self, cluster: str) -> None:
        """The cluster is lost, or trains."""
        self._clusters.pop(cluster, None)

    def resumed(self, first_rounds: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
        """An epoch is under way, in which each stage takes part from this round on.

        Returns, by cluster that has not known its first round before, the stages that need the anchor.
        """
        new: dict[str, tuple[str, ...]] = {}
        for stage, first in first_rounds.items():
            cluster, _ = stage_place(stage)
            newcomer = self._clusters.get(cluster)
            if newcomer is not None:
                if newcomer.first_round is None:
                    new[cluster] = tuple(sorted(newcomer.missing))
                newcomer.first_round = first
        return new

    def without_donors(self, cluster: str) -> None:
        """No member of its rings can give the cluster all that it needs: it waits for a checkpoint."""
        if cluster in self._clusters:
            self._clusters[cluster].from_checkpoint = True

    def wait_for(self, round_: int) -> bool:
        """Whether this round, which is committed now, is to be saved for a newcomer."""
        return not self._patient and any(self._can_use(each, round_) for each in self._clusters.values())

    @staticmethod
    def _can_use(newcomer: _Newcomer, round_: int) -> bool:
        first = newcomer.first_round
        waits = newcomer.from_checkpoint and newcomer.state_of is None
        return waits and first is not None and round_ >= first - 1

    def saving(self, round_: int) -> None:
        """The round is being saved: whoever can use it gets its state."""
        self._patient = False
        for newcomer in self._clusters.values():
            if self._can_use(newcomer, round_):
                newcomer.state_of = round_

    def given_up(self, rounds: Iterable[int]) -> None:
        """There will be no checkpoints of these rounds: another round is saved for whoever waits for one of them."""
        gone = set(rounds)
        for newcomer in self._clusters.values():
            if newcomer.state_of in gone:
                newcomer.state_of = None

    def refused(self) -> None:
        """The disk has refused a checkpoint. No round is saved for newcomers alone until a regular one is."""
        self._patient = True
        self.given_up([each.state_of for each in self._clusters.values() if each.state_of is not None])

    def written(self, round_: int) -> list[str]:
        """The checkpoint of a round is on the disk. Returns the clusters that get their state from it."""
        return [name for name, each in self._clusters.items() if each.state_of == round_]

    def missing(self, cluster: str) -> tuple[str, ...]:
        """The stages of the cluster that do not hold the anchor yet."""
        return tuple(sorted(self._clusters[cluster].missing)) if cluster in self._clusters else ()

    def holds(self, stage: str) -> None:
        """A stage holds today's anchor."""
        newcomer = self._clusters.get(stage_place(stage)[0])
        if newcomer is not None:
            newcomer.missing.discard(stage)

    @property
    def ready(self) -> list[str]:
        """The clusters of which every stage holds today's anchor."""
        return [name for name, each in self._clusters.items() if not each.missing]
