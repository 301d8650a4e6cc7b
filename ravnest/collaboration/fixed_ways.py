"""How fast the usual ways of averaging are over the same links: what an averaging plan is compared with. Pure.

In: a collaboration, of whose peers all with a sample rate compute. Out: averages per second of each way, 0 where a way
cannot work at all. Each is given its best: the fastest server, the fastest order of a ring among many, the best size of
groups. Latency is left out, as in the linear program.

    ring         block after block around a ring, reduced and then gathered: each hop carries 2 (n − 1)/n of the vector
    one server   everyone sends all to one peer and takes the average from it
    equal parts  everyone aggregates an equal share (butterfly all-reduce)
    direct       everyone sends all it has to everyone
    groups       a grid of groups, averaged by equal parts along one dimension after another (Moshpit)
"""

import itertools
import math
from collections.abc import Sequence

from ravnest.collaboration.links import Collaboration

EXACT_ORDERS = 7
"""Up to so many members all orders of a ring are tried; beyond, the best that exchanging two members leads to."""


def fixed_ways(given: Collaboration) -> dict[str, float]:
    """Return averages per second by the name of each way."""
    members = [place for place, peer in enumerate(given.peers) if peer.samples_per_s > 0]
    if len(members) == 1 and not _kept(given, members):
        return dict.fromkeys(("ring", "one server", "equal parts", "direct", "groups"), math.inf)
    all_members = [*members, *_kept(given, members)]  # who keeps the state takes part, without a gradient of its own
    return {
        "ring": ring(given, all_members),
        "one server": one_server(given, members),
        "equal parts": equal_parts(given, all_members),
        "direct": direct(given, members, all_members),
        "groups": groups(given, all_members),
    }


def ring(given: Collaboration, members: Sequence[int]) -> float:
    """Averages per second of a ring with equal blocks, in the fastest order that was found."""
    return ring_rate(given, ring_order(given, members))


def ring_order(given: Collaboration, members: Sequence[int]) -> list[int]:
    """The fastest order of a ring of two members or more that was found."""
    if len(members) > EXACT_ORDERS:
        return _exchanged(given, list(members))
    first, *rest = members
    orders = ([first, *order] for order in itertools.permutations(rest))
    return max(orders, key=lambda order: ring_rate(given, order))


def ring_rate(given: Collaboration, order: Sequence[int]) -> float:
    """Averages per second of a ring with equal blocks in this order."""
    hops = zip(order, [*order[1:], order[0]], strict=True)
    return _of_hops(min(given.pair_limit(one, other) for one, other in hops), given, len(order))


def ring_bound(given: Collaboration, members: Sequence[int]) -> float:
    """Averages per second that no order of these members exceeds: each has one hop in and one hop out."""
    best = math.inf
    for place in members:
        others = [other for other in members if other != place]
        best = min(best, max(given.pair_limit(place, other) for other in others))
        best = min(best, max(given.pair_limit(other, place) for other in others))
    return _of_hops(best, given, len(members))


def _of_hops(slowest: float, given: Collaboration, count: int) -> float:
    """Averages per second of a ring: each hop carries 2 (n − 1)/n of the vector."""
    return slowest * count / (2 * (count - 1)) / given.vector_bytes


def one_server(given: Collaboration, members: Sequence[int]) -> float:
    """Averages per second with the best of all peers as the only aggregator."""
    return max(_server(given, members, server) for server in range(len(given.peers)))


def equal_parts(given: Collaboration, members: Sequence[int]) -> float:
    """Averages per second where each member aggregates an equal share of the vector: 2 (n − 1)/n of it each way."""
    count = len(members)
    carried = 2 * (count - 1) / count
    ends = min(_narrower(given, place) for place in members) / carried
    pairs = min(given.pair_limit(one, other) for one, other in itertools.permutations(members, 2)) * count / 2
    return min(ends, pairs) / given.vector_bytes


def direct(given: Collaboration, members: Sequence[int], takers: Sequence[int]) -> float:
    """Averages per second where each of `members` sends its whole vector to all `takers`."""
    sent = min(given.peers[place].up_bytes_per_s for place in members) / (len(takers) - 1)
    taken = min(given.peers[place].down_bytes_per_s / (len(members) - (place in members)) for place in takers)
    pairs = min(given.pair_limit(one, other) for one in members for other in takers if one != other)
    return min(sent, taken, pairs) / given.vector_bytes


def groups(given: Collaboration, members: Sequence[int]) -> float:
    """Averages per second over the best two-dimensional grid, or of one group of all where no grid is faster.

    Members are sorted by their links and laid out row by row. All rows average by equal parts, then all columns.
    """
    order = sorted(members, key=lambda place: _narrower(given, place))
    best = equal_parts(given, order)
    for width in range(2, len(order) // 2 + 1):
        if len(order) % width:
            continue
        rows = [order[start : start + width] for start in range(0, len(order), width)]
        columns = [list(column) for column in zip(*rows, strict=True)]
        rates = [min(equal_parts(given, group) for group in half) for half in (rows, columns)]
        best = max(best, 1 / sum(1 / rate for rate in rates) if all(rates) else 0.0)
    return best


def _kept(given: Collaboration, members: Sequence[int]) -> list[int]:
    return [place for place, peer in enumerate(given.peers) if peer.keeps_state and place not in members]


def _narrower(given: Collaboration, place: int) -> float:
    return min(given.peers[place].up_bytes_per_s, given.peers[place].down_bytes_per_s)


def _server(given: Collaboration, members: Sequence[int], server: int) -> float:
    """Vectors per second through one server."""
    senders = [place for place in members if place != server]
    takers = [place for place in (*members, *_kept(given, members)) if place != server]
    rates = [given.pair_limit(place, server) for place in senders] + [given.pair_limit(server, at) for at in takers]
    rates.append(given.peers[server].down_bytes_per_s / max(1, len(senders)))
    rates.append(given.peers[server].up_bytes_per_s / max(1, len(takers)))
    return min(rates) / given.vector_bytes


def _exchanged(given: Collaboration, order: list[int]) -> list[int]:
    """An order whose slowest hop no exchange of two members makes faster; of equal ones, with fewer slow hops."""

    def worth(members: Sequence[int]) -> list[float]:
        return sorted(
            given.pair_limit(one, other) for one, other in zip(members, [*members[1:], members[0]], strict=True)
        )

    best = worth(order)
    gained = True
    while gained:
        gained = False
        for one, other in itertools.combinations(range(1, len(order)), 2):
            changed = [*order]
            changed[one], changed[other] = changed[other], changed[one]
            if (found := worth(changed)) > best:
                order, best, gained = changed, found, True
    return order
