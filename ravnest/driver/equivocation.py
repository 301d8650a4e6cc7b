"""Which members send some of the others something else than the rest (equivocation), by digests that all tell. Pure.

In: of one ring in one round, the digests that each member tells of what came to it from each member, its own included.
Out: members that must leave, with the reason, and whether that is proven.

Fewer than half of the members lie, so what more than half of all tell of a member is what an honest one got. Then

    proven      the member itself tells another digest of its contribution than most do; or all have told, and no digest
                is told by more than half; or its cluster was at odds with more others than can lie
    in doubt    a member tells a digest that most do not tell. Either it lies, or the contribution's sender does, and
                without signatures nobody can say which one; or not all have told, and of those that have, more than
                half of all, no more than half tell the same

An honest member is therefore never proven to lie. In doubt the one in the minority leaves, since its average would not
be that of the others, and it may come back. The two were at odds from then on. A liar that goes on so is at odds with
more and more, and is found in the end; until then it costs as many restarts of honest clusters as there can be liars.

Members whose contributions cannot be averaged at all (NaN, another form) are at odds with who says so, in the same way.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

LEAST_MEMBERS = 4
"""With fewer, nobody is judged: of three, one liar and one who was lied to look the same."""

Digests = tuple[str, ...]
"""Of one contribution: one for each vector that a robust rule averages."""


class Verdict(NamedTuple):
    """A member that must leave before the round can be averaged."""

    member: str
    reason: str
    proven: bool


class Equivocation:
    """Remembers which clusters of a run were at odds."""

    def __init__(self, cluster_of: Callable[[str], str]) -> None:
        """`cluster_of`: returns the cluster of a member."""
        self._cluster_of = cluster_of
        self._at_odds: dict[str, set[str]] = {}
        self._most_members = 0

    def judge(self, told: Mapping[str, Mapping[str, Digests]], members: int) -> list[Verdict]:
        """Return who must leave, at most one member of each cluster.

        `told`: by member that tells, and by member of whom. `members`: how many are in the ring. Where not all of them
        have told, less can be proven.
        """
        self._most_members = max(self._most_members, members)
        if members < LEAST_MEMBERS:
            return []
        verdicts: dict[str, Verdict] = {}
        for member in sorted({each for of in told.values() for each in of}):
            said = {teller: of[member] for teller, of in told.items() if member in of}
            for verdict in self._judge_one(member, said, members):
                known = verdicts.get(self._cluster_of(verdict.member))
                if known is None or not known.proven:
                    verdicts[self._cluster_of(verdict.member)] = verdict
        return list(verdicts.values())

    def refused(self, member: str, teller: str, reason: str, members: int) -> list[Verdict]:
        """Return who must leave where a member of a ring says, with the reason, that it cannot average what another one
        gave: that one, since the ring cannot go on with both, unless who says it is proven to lie by now."""
        self._most_members = max(self._most_members, members)
        why = f"{teller} cannot average what it gave: {reason}"
        return (members >= LEAST_MEMBERS and self._odds(member, teller)) or [Verdict(member, why, False)]

    def _judge_one(self, member: str, said: Mapping[str, Digests], members: int) -> list[Verdict]:
        """Return what follows from all that is told of one member's contribution."""
        ((usual, tellers),) = Counter(said.values()).most_common(1)
        if tellers == len(said):
            return []
        if 2 * tellers <= members:
            if len(said) < members and (2 * len(said) <= members or 2 * tellers > len(said)):
                return []
            return [
                Verdict(
                    member, "it sent so many different contributions that no most of them is one", len(said) >= members
                )
            ]
        if said.get(member, usual) != usual:
            return [Verdict(member, "what it says of its contribution is not what most others got", True)]
        out = []
        for teller in sorted(each for each, digest in said.items() if digest != usual):
            doubt = f"what it says of {member}'s contribution is not what most others got: one of the two lies"
            out += self._odds(member, teller) or [Verdict(teller, doubt, False)]
        proven = [verdict for verdict in out if verdict.member == member]
        return proven[:1] or out  # whoever was sent something else is not to blame

    def _odds(self, member: str, teller: str) -> list[Verdict]:
        """The two are at odds. Return who of them is proven to lie by now."""
        out = []
        for one, other in ((member, teller), (teller, member)):
            clusters = self._at_odds.setdefault(self._cluster_of(one), set())
            clusters.add(self._cluster_of(other))
            if len(clusters) > (self._most_members - 1) // 2:
                why = f"contributions of it, or what it said of others', differed from {len(clusters)} other clusters'"
                out.append(Verdict(one, why, True))
        return out
