"""How much of the vector each block of a ring holds, so that slow hops carry less. Pure arithmetic.

Design §7. With V bytes, n members, block j of b_j V bytes and the ring machine's way of passing
(ring_allreduce/ring/ring_machine.py), member i sends every block but i + 1 while it reduces and every block but i + 2
while it gathers, which is what member i + 1 receives (all indices mod n):

    over hop i → i + 1:  (2 − b_{i+1} − b_{i+2}) V bytes,    round_s = max_i of that / rate_i,    Σ b = 1,  b ≥ 0

The shares that make round_s smallest solve a linear program, whose value has a closed form (`fastest_s`). A hop carries
at least V and at most 2 V, and with equal blocks 2 V (n − 1)/n. With n = 2 every division gives V, so equal blocks are
best; with n = 1 nothing is sent. Slow members do best side by side: k of them have k + 1 slow hops there and 2 k apart,
and one large block relieves two hops that follow each other.

Two machines may find different solutions of equal worth, so one computes the shares and sends them to all as numbers.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

from ravnest_errors import InvalidInput

LEAST_GAIN = 0.02
"""Unequal blocks have to save at least this part of a round: rates are not known any better."""

_SLACK = 1e-6
"""By so much the second program may exceed the first one's time: solvers end a little beside the optimum."""


def hops_from_links(up_bytes_per_s: Sequence[float], down_bytes_per_s: Sequence[float]) -> tuple[float, ...]:
    """Return the rate of each hop i → i + 1 (bytes/s) where only the members' own uplinks and downlinks limit it."""
    if len(up_bytes_per_s) != len(down_bytes_per_s):
        raise InvalidInput(f"{len(up_bytes_per_s)} uplinks and {len(down_bytes_per_s)} downlinks for one ring")
    following = [*down_bytes_per_s[1:], *down_bytes_per_s[:1]]
    return tuple(map(min, up_bytes_per_s, following))


def hop_bytes(n_bytes: float, members: int, shares: Sequence[float] | None = None) -> tuple[float, ...]:
    """Return the bytes over each hop i → i + 1 in one round of a vector of `n_bytes`. Without `shares` blocks are
    equal.
    """
    if members == 1:
        return (0.0,)
    blocks = [1 / members] * members if shares is None else shares
    return tuple(n_bytes * (2 - blocks[(i + 1) % members] - blocks[(i + 2) % members]) for i in range(members))


def round_s(n_bytes: float, hop_bytes_per_s: Sequence[float], shares: Sequence[float] | None = None) -> float:
    """Return the seconds for which the busiest hop sends in one round of `n_bytes`, latency left out."""
    carried = hop_bytes(n_bytes, len(hop_bytes_per_s), shares)
    return max(n / rate for n, rate in zip(carried, hop_bytes_per_s, strict=True))


def shares_from_hops(hop_bytes_per_s: Sequence[float]) -> tuple[float, ...] | None:
    """Return each block's share of the vector for hops i → i + 1 of these rates (bytes/s; math.inf: no limit is known).

    Returns None, which means equal blocks, where others would save less than LEAST_GAIN. Of the fastest divisions it is
    the one nearest to equal blocks; it sums to 1 within rounding. Raises InvalidInput for a rate that is not above 0.
    """
    return _shares_from_hops(tuple(hop_bytes_per_s))


@lru_cache(maxsize=4096)  # a search for plans asks for the same few rings again and again
def _shares_from_hops(hop_bytes_per_s: tuple[float, ...]) -> tuple[float, ...] | None:
    n = len(hop_bytes_per_s)
    if not n or not all(rate > 0 for rate in hop_bytes_per_s):
        raise InvalidInput(f"a ring has hops, and each a rate above 0 bytes/s; got {list(hop_bytes_per_s)}")
    slowest = min(hop_bytes_per_s)
    if n <= 2 or math.isinf(slowest):
        return None
    rates = [rate / slowest for rate in hop_bytes_per_s]
    equal_s = round_s(1.0, rates)
    best_s = fastest_s(tuple(rates))
    if best_s > (1 - LEAST_GAIN) * equal_s:
        return None
    shares = _nearest_to_equal(rates, best_s * (1 + _SLACK))
    return shares if round_s(1.0, rates, shares) < equal_s else None


@lru_cache(maxsize=4096)
def fastest_s(hop_bytes_per_s: tuple[float, ...]) -> float:
    """Return the least round_s of a vector of one byte over any division, for three or more hops of these rates.

    It is the least T with min Σ b <= 1 over b_{i+1} + b_{i+2} >= 2 − T·rate_i, b >= 0. The dual of that minimum gives
    each hop a weight, of which those of two neighbours have sum 1 at most. On a ring its best corners are sets of hops
    of which no two are neighbours, with weight 1, and, of an odd number of hops, 1/2 everywhere. A set of k hops proves
    T >= (2·k − 1) / Σ rate, halves T >= (2·n − 2) / Σ rate. So T rises from the bound of one set to that of the set
    that weighs most at T, until none weighs more than 1.
    """
    if math.isinf(min(hop_bytes_per_s)):
        return 0.0
    count, limited = len(hop_bytes_per_s), all(map(math.isfinite, hop_bytes_per_s))
    least_s = (2 * count - 2) / sum(hop_bytes_per_s) if count % 2 and limited else 0.0
    least_s = max(least_s, 1 / min(hop_bytes_per_s))
    while True:
        chosen = _heaviest_apart([2.0 - least_s * rate for rate in hop_bytes_per_s])
        bound_s = (2 * len(chosen) - 1) / sum(hop_bytes_per_s[hop] for hop in chosen) if chosen else 0.0
        if bound_s <= least_s * (1 + 1e-12):
            return least_s
        least_s = bound_s


def _heaviest_apart(weights: Sequence[float]) -> tuple[int, ...]:
    """Return the hops of a ring of three or more, no two of them neighbours, whose weights have the largest sum."""
    count = len(weights)
    best: tuple[float, tuple[int, ...]] = (0.0, ())
    for first, last in ((0, count - 2), (1, count - 1)):  # the first hop and the last one are neighbours
        without: tuple[float, tuple[int, ...]] = (0.0, ())
        so_far = without
        for hop in range(first, last + 1):
            taken = (without[0] + weights[hop], (*without[1], hop))
            without = so_far
            so_far = max(so_far, taken, key=lambda one: one[0])
        best = max(best, so_far, key=lambda one: one[0])
    return best[1]


def _nearest_to_equal(rates: Sequence[float], limit_s: float) -> tuple[float, ...]:
    """Return the shares with the least D of |b_j − 1/n| <= D for every block, where no hop is busy longer than
    `limit_s`.
    """
    n = len(rates)
    limited = [i for i in range(n) if math.isfinite(rates[i])]
    rows = [_pair(i, n) for i in limited]
    bounds = [limit_s * rates[i] - 2.0 for i in limited]
    for j in range(n):
        for sign in (1.0, -1.0):
            rows.append({j: sign, n: -1.0})
            bounds.append(sign / n)
    shares = [max(0.0, share) for share in _solve(rows, bounds, n)[:n]]
    return tuple(share / sum(shares) for share in shares)


def _pair(hop: int, n: int) -> dict[int, float]:
    """Return the coefficient −1 for each of the two blocks that a hop carries once only."""
    return {(hop + 1) % n: -1.0, (hop + 2) % n: -1.0}


def _solve(rows: Sequence[Mapping[int, float]], bounds: Sequence[float], n: int) -> list[float]:
    """Solve for x = (n shares of sum 1, one more number), none below 0, with rows · x <= bounds and the last number
    least. A row maps the places of its few entries to their values.
    """
    # Imported here, since every stage imports this package and only planning needs scipy (40 MB, a third of a second).
    from scipy.optimize import linprog
    from scipy.sparse import csr_array

    places = [0, *itertools.accumulate(len(row) for row in rows)]
    columns = [place for row in rows for place in row]
    entries = [value for row in rows for value in row.values()]
    inequalities = csr_array((entries, columns, places), shape=(len(rows), n + 1))
    everyone = csr_array(([1.0] * n, range(n), [0, n]), shape=(1, n + 1))
    objective = [*[0.0] * n, 1.0]
    solution = linprog(objective, A_ub=inequalities, b_ub=bounds, A_eq=everyone, b_eq=[1.0], method="highs")
    if not solution.success:
        raise InvalidInput(f"no shares for these rates: {solution.message}")
    return [float(value) for value in solution.x]
