"""How much of the vector each block of a ring holds, so that slow hops carry less. Pure arithmetic.

Design §7. With V bytes, n members, block j of b_j V bytes and the ring machine's way of passing
(ring_allreduce/ring/ring_machine.py), member i sends every block but i + 1 while it reduces and every block but i + 2
while it gathers, which is what member i + 1 receives (all indices mod n):

    over hop i → i + 1:  (2 − b_{i+1} − b_{i+2}) V bytes,    round_s = max_i of that / rate_i,    Σ b = 1,  b ≥ 0

The shares that make round_s smallest solve a linear program. A hop carries at least V and at most 2 V, and with equal
blocks 2 V (n − 1)/n. With n = 2 every division gives V, so equal blocks are best; with n = 1 nothing is sent. Slow
members do best side by side: k of them have k + 1 slow hops there and 2 k apart, and one large block relieves two hops
that follow each other.

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
    if no_faster_than_s(rates) > (1 - LEAST_GAIN) * equal_s:
        return None  # the linear program could only say the same
    best_s = _fastest_s(rates)
    if best_s > (1 - LEAST_GAIN) * equal_s:
        return None
    shares = _nearest_to_equal(rates, best_s * (1 + _SLACK))
    return shares if round_s(1.0, rates, shares) < equal_s else None


def no_faster_than_s(rates: Sequence[float]) -> float:
    """Return a time for a vector of one byte that no division over hops of these rates beats, in closed form.

    The k slowest hops carry 2 k − 2 at least, since two blocks of each are carried once only and each block is so on
    two hops; k hops of which no two are neighbours carry 2 k − 1 at least, since all their blocks are different.
    """
    count = len(rates)
    apart: set[int] = set()
    least_s = together = together_apart = 0.0
    for k, hop in enumerate(sorted(range(count), key=rates.__getitem__), 1):
        together += rates[hop]
        least_s = max(least_s, (2 * k - 2) / together)
        if (hop + 1) % count not in apart and (hop - 1) % count not in apart:
            apart.add(hop)
            together_apart += rates[hop]
            least_s = max(least_s, (2 * len(apart) - 1) / together_apart)
    return least_s


def _fastest_s(rates: Sequence[float]) -> float:
    """Return the least T of b_{i+1} + b_{i+2} + T rate_i >= 2 for every hop with a limit."""
    n = len(rates)
    limited = [i for i in range(n) if math.isfinite(rates[i])]
    rows = [{**_pair(i, n), n: -rates[i]} for i in limited]
    return _solve(rows, [-2.0] * len(rows), n)[-1]


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
