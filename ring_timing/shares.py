"""How much of the vector each block of a ring holds, so that slow hops carry less. Pure arithmetic.

Design §7. With V bytes, block j of b_j V and the ring machine's way of passing (ring_machine.py), member i sends every
block
but i + 1 while reducing and every block but i + 2 while gathering, which is what member i + 1 receives (mod n):

    over hop i → i + 1:  (2 − b_{i+1} − b_{i+2}) V,    round_s = max_i of that / rate_i,    Σ b = 1,  b ≥ 0

a linear program. A hop carries V at least and 2 V at most, 2 V (n − 1)/n with equal blocks; with n = 2 always V, so
equal is best; with n = 1 nothing is sent. Slow members do best side by side: k of them have k + 1 slow hops there and
2 k apart, and one large block relieves two hops that follow each other.

Latency is left out of the program. But a large block takes longer around the ring, hop after hop, in pieces of a chunk:
where rounds are bound by that way and not by the slowest hop, blocks stay equal (`shares_that_pay`). Who computes the
shares sends them to all as numbers, since two machines may find different solutions of equal worth.
"""

import itertools
import math
from collections.abc import Mapping, Sequence

from ring_allreduce.errors import InvalidInput

LEAST_GAIN = 0.02
"""Unequal blocks must save this part of the round: below it, rates are not known so well."""

_SLACK = 1e-6
"""What the second program may lose of the first one's time: solvers end a little beside the optimum."""


def hops_from_links(up_bytes_per_s: Sequence[float], down_bytes_per_s: Sequence[float]) -> tuple[float, ...]:
    """Rate of each hop i → i + 1 (bytes/s) where only the members' own uplinks and downlinks limit it."""
    if len(up_bytes_per_s) != len(down_bytes_per_s):
        raise InvalidInput(f"{len(up_bytes_per_s)} uplinks and {len(down_bytes_per_s)} downlinks for one ring")
    following = [*down_bytes_per_s[1:], *down_bytes_per_s[:1]]
    return tuple(map(min, up_bytes_per_s, following))


def hop_bytes(n_bytes: float, members: int, shares: Sequence[float] | None = None) -> tuple[float, ...]:
    """Bytes over each hop i → i + 1 in one round of a vector of `n_bytes`; `shares` None: equal blocks."""
    if members == 1:
        return (0.0,)
    blocks = [1 / members] * members if shares is None else shares
    return tuple(n_bytes * (2 - blocks[(i + 1) % members] - blocks[(i + 2) % members]) for i in range(members))


def round_s(n_bytes: float, hop_bytes_per_s: Sequence[float], shares: Sequence[float] | None = None) -> float:
    """Seconds that the slowest hop needs for one round of `n_bytes`, latency left out."""
    carried = hop_bytes(n_bytes, len(hop_bytes_per_s), shares)
    return max(n / rate for n, rate in zip(carried, hop_bytes_per_s, strict=True))


def shares_from_hops(hop_bytes_per_s: Sequence[float]) -> tuple[float, ...] | None:
    """Block j's share of the vector, for the rates of the hops i → i + 1 (bytes/s; math.inf: no limit known).

    None: equal blocks, where others would save less than LEAST_GAIN. Among the fastest divisions the one nearest to
    equal blocks. Sum 1 to rounding. Raises InvalidInput for a rate that is not above 0.
    """
    n = len(hop_bytes_per_s)
    if not n or not all(rate > 0 for rate in hop_bytes_per_s):
        raise InvalidInput(f"a ring has hops, and each a rate above 0 bytes/s; got {list(hop_bytes_per_s)}")
    slowest = min(hop_bytes_per_s)
    if n <= 2 or math.isinf(slowest):
        return None
    rates = [rate / slowest for rate in hop_bytes_per_s]
    equal_s = round_s(1.0, rates)
    best_s = _fastest_s(rates)
    if best_s > (1 - LEAST_GAIN) * equal_s:
        return None
    shares = _nearest_to_equal(rates, best_s * (1 + _SLACK))
    return shares if round_s(1.0, rates, shares) < equal_s else None


def shares_that_pay(
    n_bytes: float, chunk_bytes: float, hop_bytes_per_s: Sequence[float], hop_latency_s: Sequence[float]
) -> tuple[float, ...] | None:
    """As shares_from_hops, but None also where a vector of `n_bytes`, in such chunks, goes around no faster."""
    shares = shares_from_hops(hop_bytes_per_s)
    if shares is None:
        return None
    n = len(hop_bytes_per_s)

    def taken_s(blocks: Sequence[float] | None) -> float:
        piece = min(chunk_bytes, n_bytes * (1 / n if blocks is None else max(blocks)))
        hops = zip(hop_bytes_per_s, hop_latency_s, strict=True)
        way_s = 2 * (n - 1) / n * sum(latency_s + piece / rate for rate, latency_s in hops)
        return max(round_s(n_bytes, hop_bytes_per_s, blocks), way_s)

    return shares if taken_s(shares) < taken_s(None) else None


def _fastest_s(rates: Sequence[float]) -> float:
    """The least T: b_{i+1} + b_{i+2} + T rate_i >= 2 for every hop with a limit."""
    n = len(rates)
    limited = [i for i in range(n) if math.isfinite(rates[i])]
    rows = [{**_pair(i, n), n: -rates[i]} for i in limited]
    return _solve(rows, [-2.0] * len(rows), n)[-1]


def _nearest_to_equal(rates: Sequence[float], limit_s: float) -> tuple[float, ...]:
    """The least D: |b_j − 1/n| <= D for every block, with no hop slower than `limit_s`."""
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
    """−1 for the two blocks that a hop carries once only."""
    return {(hop + 1) % n: -1.0, (hop + 2) % n: -1.0}


def _solve(rows: Sequence[Mapping[int, float]], bounds: Sequence[float], n: int) -> list[float]:
    """`n` shares of sum 1 and one more number, the least there is; none below 0, with rows · x <= bounds. A row has few
    entries, by their place.
    """
    # Here, since every stage imports this package and only who plans needs scipy (some 40 MB, a third of a second).
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
