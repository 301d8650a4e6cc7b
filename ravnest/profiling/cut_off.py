"""Who is cut off, of nodes some of which do not reach each other.

Decides by what else each of the two did: a node that none of several peers gets through to is cut off if one of these
peers gets through to anybody else; a node that has got through is not, however many of its peers are. What a single
failed pair, or nodes that reach nobody at all, would leave open stays open. Pure: attempts are ordered, (from, to).
"""

from collections.abc import Collection, Set
from dataclasses import dataclass

from ravnest.profiling.pairing import Pair

LEAST_TRIES = 2
"""Of a node, to say anything of it: one failure may be either end's."""


@dataclass(frozen=True)
class CutOff:
    """`receives_nothing`, `sends_nothing`: nodes to blame, in which direction; one may be in both. `failed`: all."""

    receives_nothing: frozenset[str]
    sends_nothing: frozenset[str]
    succeeded: frozenset[Pair]
    failed: frozenset[Pair]

    def explains(self, attempt: Pair) -> bool:
        """Whether the failure of `attempt` is told with one of these nodes."""
        return attempt[0] in self.sends_nothing or attempt[1] in self.receives_nothing

    def lies_between(self, attempt: Pair) -> bool:
        """Whether the one has got through to others, and others to the other: neither of the two is to blame alone."""
        out = any(a == attempt[0] for a, _ in self.succeeded)
        return out and any(b == attempt[1] for _, b in self.succeeded)

    def peers(self, node: str) -> list[str]:
        """Those with whom the node failed as it is told."""
        met = {a for a, b in self.failed if b == node and node in self.receives_nothing}
        return sorted(met | {b for a, b in self.failed if a == node and node in self.sends_nothing})


def cut_off(tried: Collection[Pair], failed: Set[Pair]) -> CutOff:
    """`tried`: every attempt, those that `failed` among them."""
    succeeded = frozenset(set(tried) - failed)
    sending, receiving = {a for a, _ in succeeded}, {b for _, b in succeeded}
    deaf, dumb = set(), set()
    for node in {name for pair in failed for name in pair}:
        senders = {a for a, b in failed if b == node}
        if node not in receiving and len(senders) >= LEAST_TRIES and senders & sending:
            deaf.add(node)
        receivers = {b for a, b in failed if a == node}
        if node not in sending and len(receivers) >= LEAST_TRIES and receivers & receiving:
            dumb.add(node)
    return CutOff(frozenset(deaf), frozenset(dumb), succeeded, frozenset(failed))
