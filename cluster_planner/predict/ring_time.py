"""What one round of one ring sends from whom to whom, and how long it takes where nothing else is sent.

Decides, as a run does (ring_allreduce, which this package does not import), who exchanges directly, and estimates how
slow hops of a ring are spared. With V bytes, m members and hops of r_i bytes/s:

    directly      everyone sends V to everyone: two members, or where it takes less than the ring:
                  (m − 1)·V / r + l < 2·(m − 1)·(V / (m·r) + l)       r, l: the slowest and the longest of all pairs
    in a ring     hop i carries v_i bytes, Σ v_i = 2·(m − 1)·V, V ≤ v_i ≤ 2·V: evenly, but no v_i / r_i above
                  T = max_k max( (2·k − 2)·V / (bytes/s of the k slowest hops),
                                 (2·k − 1)·V / (bytes/s of k hops that are apart, the slowest ones first) )

T is from below: no division is faster. A ring's round takes what its slowest hop sends, and one hop's latency, or a
chunk's way around, whichever is longer (experiments/scale, `rings`). Knows nothing of what else is on the links.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations

from cluster_planner.inputs.fleet import Fleet

CHUNK_S = 0.05
"""A chunk occupies its link for no longer (design §8)."""

LEAST_GAIN = 0.02
"""Blocks are unequal only where that saves this part of a round."""

MOST_JUDGED = 64
"""Members whose pairs are all looked at. More are taken to exchange in a ring, as all but tiny vectors do then."""


@dataclass(frozen=True)
class Exchange:
    """One ring's round. `flows`: (sender, receiver, bytes), by nodes."""

    flows: tuple[tuple[str, str, float], ...]
    slowest: str
    """Who sends for the longest time."""
    sending_s: float
    """For how long."""
    last_hop_s: float
    """How much later the last of it is there."""
    way_s: float
    """Of a chunk that waits for nobody, around as often as it goes."""


def exchange_of(fleet: Fleet, nodes: Sequence[str], vector_bytes: float) -> Exchange:
    """Between two nodes or more, in passing order; several stages may be on one."""
    direct = _direct(fleet, nodes, vector_bytes) if len(nodes) <= MOST_JUDGED else None
    return _ring(fleet, nodes, vector_bytes) if direct is None else direct


def hop_bytes(vector_bytes: float, hop_bytes_per_s: Sequence[float]) -> list[float]:
    """What each hop of a ring of three or more carries."""
    count, rates = len(hop_bytes_per_s), hop_bytes_per_s
    slowest_first = sorted(range(count), key=rates.__getitem__)
    equal = 2.0 * (count - 1) / count
    least_s = _least_s(rates, slowest_first)
    if least_s > (1 - LEAST_GAIN) * equal / rates[slowest_first[0]]:
        return [equal * vector_bytes] * count
    carried, left = [0.0] * count, 2.0 * (count - 1)
    for taken, hop in enumerate(slowest_first):
        carried[hop] = min(2.0, least_s * rates[hop], left / (count - taken))
        left -= carried[hop]
    return [part * vector_bytes for part in carried]


def _least_s(rates: Sequence[float], slowest_first: Sequence[int]) -> float:
    """T of the module's docstring, for a vector of one byte."""
    count = len(rates)
    apart: set[int] = set()
    least_s = together = together_apart = 0.0
    for k, hop in enumerate(slowest_first, 1):
        together += rates[hop]
        least_s = max(least_s, (2 * k - 2) / together)
        if (hop + 1) % count not in apart and (hop - 1) % count not in apart:
            apart.add(hop)
            together_apart += rates[hop]
            least_s = max(least_s, (2 * len(apart) - 1) / together_apart)
    return least_s


def _ring(fleet: Fleet, nodes: Sequence[str], vector_bytes: float) -> Exchange:
    count, hops = len(nodes), [*pairwise(nodes), (nodes[-1], nodes[0])]
    rates = [fleet.flow_bytes_per_s(a, b) for a, b in hops]
    latencies = [fleet.link(a, b).latency_s for a, b in hops]
    carried = hop_bytes(vector_bytes, rates)
    seconds = [sent / rate for sent, rate in zip(carried, rates, strict=True)]
    block = vector_bytes / count
    chunks_s = sum(min(block / rate, CHUNK_S) for rate in rates)
    slowest = max(range(count), key=seconds.__getitem__)
    return Exchange(
        tuple((a, b, sent) for (a, b), sent in zip(hops, carried, strict=True)),
        nodes[slowest],
        seconds[slowest],
        max(latencies),
        2.0 * (count - 1) / count * (sum(latencies) + chunks_s),
    )


def _direct(fleet: Fleet, nodes: Sequence[str], vector_bytes: float) -> Exchange | None:
    """None where a ring is faster."""
    count = len(nodes)
    numbers = [fleet.sites.number_of[name] for name in nodes]
    latency, rates = fleet.sites.between(numbers, numbers)
    longest_s, slowest = float(latency.max()), int(rates.min(axis=1).argmin())
    once_s = vector_bytes / float(rates.min())
    if count > 2 and (count - 1) * once_s + longest_s >= 2 * (count - 1) * (once_s / count + longest_s):
        return None
    flows = tuple((a, b, vector_bytes) for a, b in permutations(nodes, 2))
    return Exchange(flows, nodes[slowest], once_s, longest_s, 0.0)
