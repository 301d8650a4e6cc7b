"""Which experts a host claims, gives up and takes over: its decisions, from what the table says. Pure.

An expert belongs to the greatest claim that the table has (`Claim`: term, then updates, then name). A host whose claim
is not the greatest gives the expert up. An expert that nobody claims any more has lost its host, since claims expire:

    who has a copy of its state         claims it at once, with the next term. Of several the newest copy wins
    who has it in its own checkpoint    claims it after CHECKPOINT_LOOKS looks
    who has room                        claims it after FRESH_LOOKS looks, and begins it anew; after OTHERS_LOOKS where
                                        it was told which experts to want, and this is none of them

So an expert whose host has died goes on from the last state that the host handed to its stand-by.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from ravnest.experts.grid import MOST_TERM, Claim, Expert, block_of, expert_text

CHECKPOINT_LOOKS = 2
FRESH_LOOKS = 4
OTHERS_LOOKS = 30
"""A host that is started later is left the experts that are meant for it."""


LEAST_ROOM = 1e-3
"""Whoever takes no expert keeps copies where nobody else can."""


class Origin(Enum):
    """Where the state of an expert that a host begins to host comes from."""

    HANDED_OVER = "handed over"
    COPY = "copy"
    CHECKPOINT = "checkpoint"
    FRESH = "fresh"


@dataclass(frozen=True)
class Take:
    """Host this expert from now on, by this claim."""

    expert: Expert
    claim: Claim
    origin: Origin


@dataclass(frozen=True)
class GiveUp:
    """Host this expert no longer: `to` claims it with a greater claim."""

    expert: Expert
    to: str


@dataclass(frozen=True)
class Kept:
    """A state of an expert that this host could begin with."""

    term: int
    updates: int


class Claims:
    """The decisions of one host."""

    def __init__(self, member: str, most_experts: int, wanted: Sequence[Expert] = ()) -> None:
        """`wanted`: experts that it claims as soon as it sees that nobody else does."""
        self._member = member
        self._most = most_experts
        self._wanted = frozenset(wanted)
        self._fresh_looks = OTHERS_LOOKS if wanted else FRESH_LOOKS
        self._own: dict[Expert, Claim] = {}
        self._missing: dict[Expert, int] = {}
        self._terms: dict[Expert, int] = {}

    @property
    def own(self) -> Mapping[Expert, Claim]:
        """The experts that it hosts, and its claims."""
        return self._own

    def looked(
        self,
        experts: Collection[Expert],
        claims: Mapping[Expert, Claim],
        copies: Mapping[Expert, Kept],
        checkpoints: Mapping[Expert, Kept],
    ) -> list[Take | GiveUp]:
        """What to do after a look at the table. `experts`: all of the grid. `claims`: those that count."""
        done: list[Take | GiveUp] = []
        for expert, claim in claims.items():
            self._terms[expert] = max(claim.term, self._terms.get(expert, 0))
            own = self._own.get(expert)
            if own is not None and claim.member != self._member and claim > own:
                del self._own[expert]
                done.append(GiveUp(expert, claim.member))
        others = {expert for expert, claim in claims.items() if claim.member != self._member}
        free = [expert for expert in experts if expert not in others and expert not in self._own]
        self._missing = {expert: self._missing.get(expert, 0) + 1 for expert in free}
        # Neighbours together, since one record of the table says of all of them who hosts them.
        for expert in sorted(free, key=lambda one: rank(block_of(one), self._member), reverse=True):
            if len(self._own) >= self._most:
                break
            copy, checkpoint, looks = copies.get(expert), checkpoints.get(expert), self._missing[expert]
            if copy is not None:
                done.append(self.take(expert, copy, Origin.COPY))
            elif checkpoint is not None and (looks >= CHECKPOINT_LOOKS or expert in self._wanted):
                done.append(self.take(expert, checkpoint, Origin.CHECKPOINT))
            elif looks >= self._fresh_looks or expert in self._wanted:
                done.append(self.take(expert, Kept(0, 0), Origin.FRESH))
        return done

    def take(self, expert: Expert, state: Kept, origin: Origin) -> Take:
        """Claim an expert with a state that it has, by a term that is greater than all that were seen.

        Where the greatest term of all was seen, by that one again: then updates decide, and the name, as long as both
        claims are there.
        """
        term = min(max(state.term, self._terms.get(expert, 0)) + 1, MOST_TERM)
        self._terms[expert] = term
        self._own[expert] = claim = Claim(term, state.updates, self._member)
        return Take(expert, claim, origin)

    def gave(self, expert: Expert) -> None:
        """It has handed an expert over to another host."""
        del self._own[expert]

    @property
    def room(self) -> int:
        """How many more experts it takes."""
        return max(0, self._most - len(self._own))


def rank(expert: Expert, member: str) -> bytes:
    """A number by which each expert prefers members, in another order than other experts (rendezvous hashing)."""
    return hashlib.sha256(f"{expert_text(expert)}/{member}".encode()).digest()


def stand_by(expert: Expert, hosts: Mapping[str, int], own: str) -> str | None:
    """Which other host keeps a copy of an expert's state; None when there is no other.

    hosts: how many experts each of them takes. So many times as many copies come to one that takes so many times as
    many, since its memory is larger: weighted rendezvous hashing, −ln(u) / weight is least, with u uniform in (0, 1).
    """

    def distance(host: str) -> float:
        uniform = (int.from_bytes(rank(expert, host)[:7], "big") + 0.5) / 2.0**56
        return -math.log(uniform) / max(hosts[host], LEAST_ROOM)

    return min((host for host in hosts if host != own), key=lambda host: (distance(host), host), default=None)
