"""What clusters of a simulated run that leave hand on to one that stays, and when it counts. Pure.

In: clusters that have drained, what has arrived, epochs and commits. Out: who hands what to whom, and the samples that
count by it. `HandingOn` decides, as in a real run; sending takes place in rounds.py.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ravnest.recovery import HandingOn, Way


@dataclass(frozen=True)
class _HandedOn:
    """What a cluster had made when it left, and another one gives to a round: in samples of the cluster."""

    cluster: str
    base: int
    """Those that were averaged already."""
    samples: int
    to: str
    round: int | None = None
    """The first round that it may be given to; None while that is not known."""


class HandedProgress:
    """What is handed on in one simulated run."""

    def __init__(self) -> None:
        self._handing = HandingOn()
        self._handed_on: list[_HandedOn] = []
        self._vanished: list[_HandedOn] = []
        """What was lost with who had taken it, when who made it had gone on already."""

    @property
    def vanished(self) -> int:
        """The samples that were lost so."""
        return sum(each.samples - each.base for each in self._vanished)

    def in_anchor(self, averaged: Mapping[str, int]) -> int:
        """The samples whose effect is in the anchor, where each cluster's count is `averaged` so far: who goes on from
        what has vanished counts it as averaged after its next round."""
        lost = sum(min(max(averaged[each.cluster] - each.base, 0), each.samples - each.base) for each in self._vanished)
        return sum(averaged.values()) - lost

    def may_go(self, cluster: str, averaged: int, samples: int, *, drained: bool) -> bool:
        """Whether all `samples` that a cluster has made are `averaged`, and it makes no more, or with another one."""
        holds = any(each.to == cluster for each in self._handed_on)
        if not self._handing.whole(cluster, samples):
            return drained and averaged == samples and not holds
        self._handing.is_out(cluster)
        if averaged != samples:
            self._handed_on.append(_HandedOn(cluster, averaged, samples, self._handing.to(cluster)))
        return True

    def begin(self, cluster: str, staying: Sequence[str], rings: Mapping[str, Iterable[str]]) -> tuple[Way, ...]:
        """A cluster that leaves hands on what it has made. Returns what goes where: once, unless it has to be again."""
        if self._handing.takes(cluster) or any(each.to == cluster for each in self._handed_on):
            return ()
        return self._handing.begin(cluster, staying, rings) or self._handing.again(cluster)

    def arrived(self, way: Way, samples: int) -> bool:
        """What a stage has made is with another one. Returns whether all of its cluster is."""
        return self._handing.arrived(way, samples)

    def goes_on_at(self, cluster: str, averaged: int) -> int:
        """The samples of a cluster that need not be made again when it begins anew."""
        return max([averaged, *(each.samples for each in self._handed_on if each.cluster == cluster)])

    def held_by(self, cluster: str) -> int:
        """The samples that a cluster has taken of others and that no round has yet."""
        return sum(each.samples - each.base for each in self._handed_on if each.to == cluster)

    def lost(self, cluster: str, there: Collection[str]) -> None:
        """A cluster is lost, while these are in the run."""
        self._handing.lost(cluster)
        gone = [each for each in self._handed_on if each.to == cluster]
        self._vanished += [each for each in gone if each.cluster in there]
        self._handed_on = [each for each in self._handed_on if each.to != cluster]

    def give_on(self, unsettled: Collection[str], opened: int) -> None:
        """Clusters give to the next round what they have taken of those that are out and not `unsettled`: of which it
        is not known yet whether what they contributed to the rounds under way counts."""
        for cluster in [each for each in self._handing.out if each not in unsettled]:
            self._handing.given(cluster)
            self._handed_on = [
                replace(each, round=opened + 1) if each.cluster == cluster and each.round is None else each
                for each in self._handed_on
            ]

    def committed(self, number: int) -> dict[str, int]:
        """A round is committed. Returns by cluster the samples that are in it because they were handed on."""
        given = [each for each in self._handed_on if each.round is not None and each.round <= number]
        self._handed_on = [each for each in self._handed_on if each not in given]
        return {each.cluster: each.samples for each in given}
