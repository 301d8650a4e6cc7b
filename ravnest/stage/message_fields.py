"""The types of the fields of messages between stages and the driver, with the bounds that decoding checks.

In: nothing. Out: types for messages.py. Losses, sums of metrics and norms may be infinite or NaN, because training may
diverge, which is told elsewhere. Everything else is finite and bounded, and every collection is bounded in length.
"""

from typing import Annotated

from ring_allreduce.transport import MOST_COUNT, Count, Name, Seconds, at_most, between

MOST_STALENESS = 10_000
"""The largest staleness that is reported, in updates. The driver counts each staleness up to it by itself."""

MOST_MICRO_BATCHES = 1 << 16
"""The most micro-batches of an update whose staleness and losses are reported."""

MOST_LANES = 60_000
"""The largest number of a lane of a timeline (reports.py)."""

PIECE = 1024
"""The most spans of a timeline that travel in one message, which is then some 25 kB."""

Stalenesses = Annotated[tuple[Annotated[int, between(0, MOST_STALENESS)], ...], at_most(MOST_MICRO_BATCHES)]
Losses = Annotated[tuple[float, ...], at_most(MOST_MICRO_BATCHES)]
LearningRate = Annotated[float, between(0.0, 1e30)]

Names = Annotated[tuple[Name, ...], at_most(8192)]
MOST_NAMED = 1000
"""The most things that are reported by name in one message."""

ByName = Annotated[dict[Name, Count], at_most(MOST_NAMED)]
MOST_RATE = 1e15
Rates = Annotated[dict[Name, Annotated[float, between(0.0, MOST_RATE)]], at_most(MOST_NAMED)]
"""Bytes per second by peer."""

Numbers = Annotated[dict[Name, Annotated[float, between(0.0, MOST_RATE)]], at_most(MOST_NAMED)]
"""Any number by name that is not negative."""

Spent = Annotated[dict[Name, Seconds], at_most(64)]
"""Seconds by state of a stage's ledger."""

Sums = tuple[float, Annotated[float, between(0.0, 1e300)]]
"""A sum, and the number of things in it, or the sum of their weights."""

MOST_RINGS = 8192
"""The most rings of a stage. It is in one for each of its segments."""

MOST_ROUNDS = 1 << 16
"""The most rounds, of all rings of a run together, that are under way."""

Rounds = Annotated[tuple[Count, ...], at_most(MOST_ROUNDS)]

Places = Annotated[tuple[Count, ...], at_most(8192)]
"""Where the groups of a ring of rings begin. That they fit its members is checked where the ring is made."""

Shares = Annotated[tuple[Annotated[float, between(0.0, 2.0)], ...], at_most(8192)]
"""The part of a ring's vector in each member's block. That they add up to 1 is checked where a ring is divided."""

Shape = Annotated[tuple[Count, ...], at_most(64)]
"""The lengths of a tensor's dimensions."""

Piece = at_most(PIECE)
Lane = Annotated[int, between(0, MOST_LANES)]
SpanNumber = Annotated[int, between(-1, MOST_COUNT)]
Word = Annotated[str, at_most(64)]


def require_no_negative(norm_sq: float | None) -> None:
    """Raises ValueError for a squared norm that no gradient has. Where training has diverged, it may not be finite."""
    if norm_sq is not None and norm_sq < 0.0:
        raise ValueError(f"a squared norm of {norm_sq}")
