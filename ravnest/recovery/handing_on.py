"""Which clusters that leave hand on what they have made, to which that stay, and how far that has come. Pure.

In: clusters that leave, the members of the rings, and what has arrived. Out: for each stage and ring of a leaving
cluster the stage that takes what it has made. All of it goes to one cluster, which holds the whole model as any other
does: it gives that to a round as one, or is lost with it as one.

    asked ─ all of its rings have arrived ─► whole ─ the cluster is out, and its last rounds are settled ─► given

Stages give what they have when they rest, and may have gone on since. Only what is of the same updates everywhere, and
of all that the cluster has made, is whole; otherwise they are asked again.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ravnest.pipeline import stage_place


class Way(NamedTuple):
    """What `giver` has made in a ring goes to `taker`."""

    ring: str
    giver: str
    taker: str


@dataclass
class _Handing:
    to: str
    ways: tuple[Way, ...]
    arrived: dict[Way, int] = field(default_factory=dict)
    """What has arrived, with the updates that it is of."""
    out: bool = False
    """Whether the cluster has left the run."""
    counted: list[int] = field(default_factory=list)


class HandingOn:
    """What clusters that leave hand on."""

    def __init__(self) -> None:
        self._handings: dict[str, _Handing] = {}
        """By cluster that leaves, or has left."""

    def begin(self, cluster: str, staying: Sequence[str], rings: Mapping[str, Iterable[str]]) -> tuple[Way, ...]:
        """The cluster leaves. Returns what goes where, once; nothing where nobody stays.

        `staying`: who may take it, the best first; of those, who takes the fewest already. `rings`: by ring, its
        members.
        """
        if cluster in self._handings or not staying:
            return ()
        taking = Counter(each.to for each in self._handings.values())
        to = min(staying, key=lambda name: taking[name])
        ways = tuple(
            Way(ring, giver, takers[index % len(takers)])
            for ring, members in rings.items()
            if (takers := [each for each in members if stage_place(each)[0] == to])
            for index, giver in enumerate(each for each in members if stage_place(each)[0] == cluster)
        )
        if ways:
            self._handings[cluster] = _Handing(to, ways)
        return ways

    def arrived(self, way: Way, updates: int) -> bool:
        """What a stage has made in a ring in so many updates has arrived. Returns whether all of its cluster has."""
        handing = self._handings.get(stage_place(way.giver)[0])
        if handing is None or way not in handing.ways or way in handing.arrived:
            return False
        handing.arrived[way] = updates
        return len(handing.arrived) == len(handing.ways)

    def whole(self, cluster: str, updates: int) -> bool:
        """Whether all that the cluster has made, in so many updates, is with the one that takes it."""
        handing = self._handings.get(cluster)
        return handing is not None and handing.arrived == dict.fromkeys(handing.ways, updates)

    def again(self, cluster: str) -> tuple[Way, ...]:
        """Returns what goes where once more, if all has arrived, but not of the same updates; nothing otherwise."""
        handing = self._handings.get(cluster)
        if handing is None or handing.out or len(handing.arrived) < len(handing.ways):
            return ()
        handing.arrived.clear()
        return handing.ways

    def to(self, cluster: str) -> str:
        """The name of the cluster that takes it."""
        return self._handings[cluster].to

    def is_out(self, cluster: str) -> None:
        """The cluster leaves the run, now that all of it has arrived."""
        self._handings[cluster].out = True

    @property
    def out(self) -> list[str]:
        """The clusters that are out, and of which nothing is given yet."""
        return [name for name, each in self._handings.items() if each.out]

    def takes(self, cluster: str) -> bool:
        """Whether a cluster takes, or has taken, what another one hands on."""
        return any(each.to == cluster for each in self._handings.values())

    def committed(self, round_: int, contributed: Iterable[str]) -> None:
        """A round is committed to which these clusters have contributed: that part of what they hand on counts."""
        for cluster in contributed:
            if cluster in self._handings:
                self._handings[cluster].counted.append(round_)

    def given(self, cluster: str) -> tuple[tuple[Way, ...], tuple[int, ...]]:
        """The cluster is out, and what becomes of its last rounds is settled. Returns all that its taker is to give to
        a round, and the rounds that have had their part of it. Nothing more is known of it then."""
        handing = self._handings.pop(cluster)
        return handing.ways, tuple(handing.counted)

    def lost(self, cluster: str) -> list[str]:
        """A cluster is lost, or does not leave any more: whatever was on its way from it or to it is. Returns of whom.

        What one that is out had handed on stays, as it needs that cluster no more.
        """
        of = [name for name, each in self._handings.items() if each.to == cluster or (name == cluster and not each.out)]
        for name in of:
            del self._handings[name]
        return of
