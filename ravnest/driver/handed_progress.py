"""What clusters that leave have made and no round has yet: it is handed to one that stays, which gives it to a round.

In: clusters that leave, what has arrived, epochs and commits. Out: messages to the stages, and whether a cluster
may go. Pure. `HandingOn` (ravnest/recovery) says who takes it, the accounts when it counts.
"""

from collections.abc import Collection, Iterable, Mapping

from ravnest.driver.accounts import RunShape, SampleAccounts
from ravnest.driver.instructions import RecordProgressHandedOn, SendToStage
from ravnest.driver.roster import Roster
from ravnest.recovery import HandingOn, Way
from ravnest.stage import donor_messages as dm


class HandedProgress:
    """Lets clusters that leave hand on what they have made."""

    def __init__(self, shape: RunShape, accounts: SampleAccounts) -> None:
        self._shape = shape
        self._accounts = accounts
        self._handing = HandingOn()

    @property
    def unsettled(self) -> bool:
        """Whether something is taken of a cluster that is out, and no round is named yet that gets it."""
        return bool(self._handing.out)

    def goes(self, cluster: str, *, drained: bool) -> list[RecordProgressHandedOn] | None:
        """What there is to say of a cluster that may go now: all that it has made is averaged, and it makes no more, or
        is with another one that stays. None where it may not go."""
        accounts, made = self._accounts, self._accounts.updates[cluster]
        averaged = drained and accounts.averaged[cluster] == made and not accounts.holds(cluster)
        if not self._handing.whole(cluster, made):
            return [] if averaged else None
        self._handing.is_out(cluster)
        if averaged:
            return []
        to, updates = self._handing.to(cluster), made - accounts.averaged[cluster]
        accounts.handed_on(cluster, to)
        return [RecordProgressHandedOn(cluster, to, updates * self._shape.samples_per_update)]

    def hand_on(self, cluster: str, clusters: Roster, rings: Mapping[str, Iterable[str]]) -> list[SendToStage]:
        """Let another cluster take what one that leaves has made, as the next round may come too late for it."""
        if not self._shape.hands_on or self._accounts.holds(cluster) or self._handing.takes(cluster):
            return []
        staying = [name for name in self._shape.evaluators if name in clusters.staying]
        sources: dict[str, list[tuple[int, str]]] = {}
        for way in self._handing.begin(cluster, staying, rings) or self._handing.again(cluster):
            sources.setdefault(way.taker, []).append((int(way.ring), way.giver))
        return [SendToStage(taker, dm.TakeProgress(sources=tuple(each))) for taker, each in sources.items()]

    def taken(self, taker: str, message: dm.ProgressTaken) -> bool:
        """A stage has all that another one has made in a ring. Returns whether that was all of its cluster."""
        return self._handing.arrived(Way(str(message.ring), message.giver, taker), message.updates)

    def lost(self, cluster: str) -> None:
        """A cluster is lost."""
        self._handing.lost(cluster)

    def stay(self, clusters: Iterable[str]) -> None:
        """These clusters do not leave any more."""
        for cluster in clusters:
            self._handing.lost(cluster)

    def committed(self, round_: int, contributed: Collection[str]) -> None:
        """A round is committed to which these clusters have contributed."""
        self._handing.committed(round_, contributed)

    def give_on(self, opened: int) -> list[SendToStage]:
        """Let stages give to a round what they have taken of clusters that are out, once it is known which of the
        rounds that those had contributed to have counted. `opened` is the newest round that is open."""
        out = []
        for cluster in [each for each in self._handing.out if self._accounts.settled(each)]:
            ways, counted = self._handing.given(cluster)
            self._accounts.is_given(cluster, opened + 1)
            for ring, giver, taker in ways:
                order = dm.AddProgress(ring=int(ring), giver=giver, from_round=opened + 1, counted=counted)
                out.append(SendToStage(taker, order))
        return out
