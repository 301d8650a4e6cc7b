"""Estimates of latency, jitter and sustained rates from measured times, and of how uncertain they are.

In: round-trip times, arrival times and repeated measurements. Out: figures in SI units with their spread. This module
is pure arithmetic; it decides which part of a transfer counts, and when a figure is called uncertain.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

UNCERTAIN = 0.25
"""A figure is called uncertain if its samples spread by more than this share of it."""

WARM_UP_PINGS = 2
"""The first round trips are left out, since they include connecting."""

SLOW_START_SHARE = 0.4
"""The share of a transfer, at its beginning, that is left out of the sustained rate."""

SLICES = 6
"""The rest of a transfer is cut into so many slices, whose rates show how steady it was."""


@dataclass(frozen=True)
class MeasuredFigure:
    """A figure in SI units. `spread` is the range of the middle 80 % of its samples, as a share of the figure."""

    value: float
    spread: float

    @property
    def is_uncertain(self) -> bool:
        return self.spread > UNCERTAIN


@dataclass(frozen=True)
class MeasuredLatency:
    """The latency one way, in seconds. A message may be later by up to `jitter_s`, if delays are uniform."""

    seconds: float
    jitter_s: float


def latency(round_trips_s: Sequence[float]) -> MeasuredLatency:
    """Return half of the shortest round trip, which nothing has delayed, as the latency.

    The jitter is the median round trip less the shortest: if the delay of each way is uniform from 0 to J, round trips
    exceed the shortest by J in the median. Raises ValueError without samples.
    """
    kept = list(round_trips_s[WARM_UP_PINGS:]) or list(round_trips_s)
    if not kept:
        raise ValueError("no round trip was measured")
    return MeasuredLatency(min(kept) / 2, median(kept) - min(kept))


def sustained(arrivals: Sequence[tuple[float, int]], until_s: float) -> MeasuredFigure:
    """Return the rate of a transfer in bytes/s, without its slow beginning.

    Arguments:
        arrivals: pairs of a time in seconds and the bytes that had arrived by then, in order.
        until_s: when the last byte was handed over; later arrivals may be slower for want of data and do not count.

    Raises:
        ValueError: where too little arrived to tell.
    """
    kept = [(at_s, total) for at_s, total in arrivals if at_s <= until_s]
    if len(kept) < 3:
        kept = list(arrivals)
    if len(kept) < 3:
        raise ValueError(f"only {len(kept)} blocks arrived")
    begin_s = kept[0][0] + SLOW_START_SHARE * (kept[-1][0] - kept[0][0])
    steady = [point for point in kept if point[0] >= begin_s]
    if len(steady) < 3:
        steady = kept[-3:]
    rate = _rate(steady)
    pieces = min(SLICES, (len(steady) - 1) // 2)
    edges = [round(i * (len(steady) - 1) / pieces) for i in range(pieces + 1)] if pieces > 1 else []
    rates = [_rate(steady[a : b + 1]) for a, b in pairwise(edges)]
    return MeasuredFigure(rate, _spread(rates, rate))


def together(transfers: Sequence[Sequence[tuple[float, int]]], until_s: float) -> MeasuredFigure:
    """Return the rate of simultaneous transfers on one clock: all bytes over the time in which all of them were under
    way.

    The sum of their own rates would be too high, since each may have been fastest while another waited. See
    `sustained` for the arguments and errors.
    """
    begin_s = max(transfer[0][0] for transfer in transfers if transfer)
    last_s = min(transfer[-1][0] for transfer in transfers if transfer)
    steps = [
        (at_s, total - before)
        for transfer in transfers
        for (_, before), (at_s, total) in pairwise([(begin_s, 0), *transfer])
    ]
    arrivals, total = [], 0
    for at_s, more in sorted(steps):
        total += more
        if begin_s <= at_s <= last_s:
            arrivals.append((at_s, total))
    return sustained(arrivals, until_s)


def typical(values: Sequence[float]) -> MeasuredFigure:
    """Return the median of repeated measurements of one thing. Raises ValueError without any."""
    if not values:
        raise ValueError("nothing was measured")
    middle = median(values)
    return MeasuredFigure(middle, _spread(values, middle))


def _rate(points: Sequence[tuple[float, int]]) -> float:
    seconds = points[-1][0] - points[0][0]
    if seconds <= 0:
        raise ValueError("all blocks arrived at one moment: the transfer was too short")
    return (points[-1][1] - points[0][1]) / seconds


def _spread(values: Sequence[float], around: float) -> float:
    if len(values) < 2 or around <= 0:
        return 0.0
    ordered = sorted(values)
    edge = len(ordered) // 10
    return (ordered[-1 - edge] - ordered[edge]) / around
