"""Which members of the rings contribute what no honest member would, by what all members have seen. Pure.

In: for each round and ring, the norm, distance, direction and weight of each member's contribution, as the members have
seen them (ring_allreduce/ring/robust_mean.py), and its digest. Out: one line of figures for each ring of a committed
round, and stages that are to leave, with the reason.

Members that send some of the others something else than the rest are found by the digests (equivocation.py) once each
member of a ring has told its own or says that it has finished, which is before the round can be committed. So the round
starts again without them, and nobody merges its average. All others are judged by the figures, at the commit.

Each figure is the median over the members that tell it, the member itself left out, so no minority of liars makes it.
A contribution is odd where

    its norm is more than MOST_NORM times the median of the others', times as much as its weight is above theirs, or
    it points away from the members' median (cosine below 0), while the others agree (median cosine above AGREED).

A contribution that is shorter than others is not odd: a slow cluster has made less. One odd round proves nothing, for a
learning rate may be warming up or data may be rare. So a cluster is found out that was odd in STRIKES of its last
LOOKED_AT rounds in which it had a weight. Lies within these bounds are not told from noise; a robust average bounds
what they do. With fewer than LEAST_MEMBERS members, or where at most half of them tell, nobody is judged: too few could
be wrong together. Who tells nothing hides nothing by that.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import NamedTuple

from ravnest.driver.equivocation import LEAST_MEMBERS, Digests, Equivocation, Verdict
from ravnest.stage.epoch_messages import ContributionsSeen, MemberRefused
from ravnest.stage.messages import RingFinishedMessage
from ring_allreduce.ring import ContributionFigures

MOST_NORM = 5.0
MOST_WEIGHT_RATIO = 4.0
"""A claimed weight excuses a norm that is so many times larger, and no more."""

AGREED = 0.2
STRIKES = 3
LOOKED_AT = 5
MOST_ROUNDS = 64
"""Rounds that are not committed yet of which anything is kept. No run has as many under way."""

_Seen = dict[str, Mapping[str, ContributionFigures]]
"""By member that tells: what it has seen of each member."""


class Found(NamedTuple):
    """A stage whose cluster leaves."""

    stage: str
    reason: str
    spoils: bool
    """Whether the rounds that are not committed start again, because not all members were sent the same."""


@dataclass
class _Told:
    """What is told of one round of one ring, in one epoch."""

    epoch: int
    members: frozenset[str]
    seen: _Seen = field(default_factory=dict)
    digests: dict[str, Mapping[str, Digests]] = field(default_factory=dict)
    finished: set[str] = field(default_factory=set)
    """Who has the average, whether it tells anything or not."""
    compared: bool = False


class LiarWatch:
    """Judges the contributions of one run."""

    def __init__(self, cluster_of: Callable[[str], str]) -> None:
        """`cluster_of`: returns the cluster of a stage."""
        self._cluster_of = cluster_of
        self._equivocation = Equivocation(cluster_of)
        self._seen: dict[int, dict[int, _Told]] = {}
        self._committed = 0
        self._last: dict[str, deque[str]] = {}
        """By cluster: of its last rounds what was odd, or nothing."""
        self._found: list[Found] = []
        self._lines: list[dict[str, object]] = []
        self.shut_out: set[str] = set()
        """The clusters that were found out. They are not started anew on their nodes."""

    def saw(
        self, stage: str, message: ContributionsSeen | MemberRefused | RingFinishedMessage, members: Collection[str]
    ) -> None:
        """Take what a stage has seen of the contributions to a round of one of its rings that is not committed yet, or
        that it has finished it, or cannot average what a member gave. `members`: all that are in this ring now; none
        where the stage is not one of them, and is not believed."""
        if not members or self._cluster_of(stage) in self.shut_out:
            return
        if isinstance(message, MemberRefused):
            if message.member != stage:
                self._leave(self._equivocation.refused(message.member, stage, message.reason, len(members)), False)
            return
        if message.round <= self._committed:
            return
        rings = self._seen.setdefault(message.round, {})
        told = rings.get(message.ring)
        tells = isinstance(message, ContributionsSeen)
        if told is None or (tells and told.epoch < message.epoch):  # the round has started again
            told = rings[message.ring] = _Told(message.epoch, frozenset(members))
        if told.epoch != message.epoch:  # too late, or of who was handed an average that had been made before
            return
        if isinstance(message, RingFinishedMessage):
            told.finished.add(stage)
        else:
            told.seen[stage] = {member: ContributionFigures(*figures) for member, figures in message.members.items()}
            if message.digests:
                told.digests[stage] = message.digests
        if told.digests.keys() | told.finished >= told.members:
            self._compare(told)
        if len(self._seen) > MOST_ROUNDS:
            del self._seen[max(self._seen)]

    def committed(self, round_: int) -> None:
        """The round is committed: nothing more is told of it, and its contributions are judged."""
        self._committed = max(self._committed, round_)
        odd: dict[str, tuple[str, str]] = {}
        judged: set[str] = set()
        for number in sorted(number for number in self._seen if number <= round_):
            for ring, told in sorted(self._seen.pop(number).items()):
                self._compare(told)
                seen, figures = told.seen, agreed_on(told.seen)
                if not seen:
                    continue
                self._lines.append({"round": number, "ring": ring, "members": _plain(figures)})
                judged |= {self._cluster_of(member) for member, each in figures.items() if each.weight > 0.0}
                if len(told.members) >= LEAST_MEMBERS and 2 * len(seen) > len(told.members):
                    odd |= {self._cluster_of(member): (member, why) for member, why in odd_ones(figures).items()}
        for cluster in sorted(judged):
            member, why = odd.get(cluster, ("", ""))
            last = self._last.setdefault(cluster, deque(maxlen=LOOKED_AT))
            last.append(why)
            strikes = [each for each in last if each]
            if len(strikes) >= STRIKES and why and cluster not in self.shut_out:
                self.shut_out.add(cluster)
                often = f"{len(strikes)} of its last {len(last)} rounds"
                said = f"its contributions to {often} were not like the others': {why}"
                self._found.append(Found(member, said, spoils=False))

    def _compare(self, told: _Told) -> None:
        """Compare what members tell of each other's contributions, once in an epoch."""
        if told.compared:
            return
        told.compared = True
        self._leave(self._equivocation.judge(told.digests, len(told.members)), True)

    def _leave(self, verdicts: Iterable[Verdict], spoils: bool) -> None:
        """These members leave, and those who are proven to lie for good."""
        for member, reason, proven in verdicts:
            cluster = self._cluster_of(member)
            if cluster not in self.shut_out:
                self.shut_out |= {cluster} if proven else set()
                self._found.append(Found(member, reason, spoils))

    def found(self) -> list[Found]:
        """Return the stages that were found out since the last call, one of each cluster. Those whose clusters are not
        in `shut_out` may come back."""
        found, self._found = self._found, []
        return found

    def lines(self) -> list[dict[str, object]]:
        """Return the figures of the contributions that were judged since the last call, by round and ring."""
        lines, self._lines = self._lines, []
        return lines


def agreed_on(seen: Mapping[str, Mapping[str, ContributionFigures]]) -> dict[str, ContributionFigures]:
    """Return each member's figures: the medians of what the others say. `seen`: by who says it, and by member.

    A member is left out of whom fewer than half of the others say anything.
    """
    agreed = {}
    for member in sorted({member for each in seen.values() for member in each}):
        said = [each[member] for teller, each in seen.items() if teller != member and member in each]
        if 2 * len(said) >= len(seen) - (member in seen) and said:
            columns = zip(*((each.norm, each.distance, each.cosine, each.weight) for each in said), strict=True)
            agreed[member] = ContributionFigures(*(median(column) for column in columns))
    return agreed


def odd_ones(figures: Mapping[str, ContributionFigures]) -> dict[str, str]:
    """Return the members whose contributions are odd, and what is odd."""
    counting = {member: each for member, each in figures.items() if each.weight > 0.0}
    if len(counting) < LEAST_MEMBERS:
        return {}
    found = {}
    for member, mine in counting.items():
        others = [each for name, each in counting.items() if name != member]
        norm, weight, cosine = (
            median(column) for column in zip(*((o.norm, o.weight, o.cosine) for o in others), strict=True)
        )
        excused = min(MOST_WEIGHT_RATIO, max(1.0, mine.weight / weight))
        if mine.norm > MOST_NORM * excused * norm > 0.0:
            found[member] = f"its norm was {mine.norm:.3g}, theirs {norm:.3g}"
        elif mine.cosine < 0.0 and cosine > AGREED:
            found[member] = f"its direction had the cosine {mine.cosine:.2f} with theirs, which agreed by {cosine:.2f}"
    return found


def _plain(figures: Mapping[str, ContributionFigures]) -> dict[str, object]:
    return {member: asdict(each) for member, each in figures.items()}
