"""Which backbone machines add up which ranges of the gradient, and whether that pays. Pure.

In: the links of the machines, and how many volunteers compute. Out: a division, or None where one machine is as good.
The program is that of averaging_plan.py, with the backbone machines as the only aggregators. Volunteers' links are
taken to be without limit: what is seen of them is what the backbone's link has left for each. So the program says how
to divide; whether it was worth it the steps say.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from ravnest.collaboration.averaging_plan import shares_for
from ravnest.collaboration.links import Collaboration, PeerLinks
from ravnest.collaboration.packing import Packing
from ravnest.collaboration.shares import Division, division_by

LEAST_GAIN = 1.15
"""Averages per second with shares, of those without or by the present ranges; less is not worth a change."""

JUDGED = 3
"""The steps that are compared, before and in an epoch."""


@dataclass(frozen=True)
class Link:
    """What is known of a backbone machine's link, in bytes per second; 0: nothing."""

    up_bytes_per_s: float = 0.0
    down_bytes_per_s: float = 0.0


def planned(
    packing: Packing,
    own: Link,
    helpers: Sequence[Link],
    volunteers: int,
    present: tuple[Division, Sequence[int]] | None = None,
) -> tuple[Division, list[int]] | None:
    """The division, and which of the helpers have a part of it; None where it gains less than LEAST_GAIN over what is
    there: one machine, or `present`, a division and who of the helpers has its parts."""
    if volunteers < 2 or not helpers or not own.up_bytes_per_s or not own.down_bytes_per_s:
        return None
    links = [
        Link(one.up_bytes_per_s or own.up_bytes_per_s, one.down_bytes_per_s or own.down_bytes_per_s) for one in helpers
    ]
    peers = volunteers + 1 + len(links)
    before = [1.0, *[0.0] * len(links)] if present is None else _parts(*present, len(links))
    best, gained = None, LEAST_GAIN * _averages([own, *links], before, peers)
    order = sorted(range(len(links)), key=lambda at: -min(links[at].up_bytes_per_s, links[at].down_bytes_per_s))
    for count in range(1, len(order) + 1):  # a slow one takes averages late, and makes nobody wait
        asked = sorted(order[:count])
        found = _divided(packing, [own, *(links[at] for at in asked)], volunteers)
        if found is None:
            continue
        division, named = found
        machines = [1 + asked[machine - 1] for machine in named]
        averages = _averages([own, *links], _parts(division, machines, len(links)), peers)
        if averages > gained:
            best, gained = (division, machines), averages
    return best


def _divided(packing: Packing, links: Sequence[Link], volunteers: int) -> tuple[Division, list[int]] | None:
    """By the shares of the linear program, rounded to pieces."""
    peers = tuple(
        PeerLinks(f"b{at}", one.up_bytes_per_s, one.down_bytes_per_s, 0.0, keeps_state=True)
        for at, one in enumerate(links)
    )
    fast = 10 * sum(one.up_bytes_per_s + one.down_bytes_per_s for one in peers)
    peers += tuple(PeerLinks(f"v{at}", fast, fast, 1.0) for at in range(volunteers))
    given = Collaboration(peers, float(max(1, packing.sent[0].elements)), 1.0)
    plan = shares_for(given, range(len(links), len(peers)), range(len(links)))
    return division_by(packing, plan.shares[: len(links)])


def _parts(division: Division, named: Sequence[int], helpers: int) -> list[float]:
    """The shares of a division by machine. `named`: the machine of each part but the first, from 1 on."""
    shares = [0.0] * (1 + helpers)
    for part, machine in enumerate((0, *named)):
        span = division.span(part)
        shares[machine] = (span.stop - span.start) / division.bounds[-1]
    return shares


def relays_pay(own: Link, helpers: Sequence[Link], division: Division, volunteers: int, relayed: int) -> bool:
    """Whether a division among this machine and all of these is faster than one machine, where so many volunteers do
    not reach the helpers."""
    links = [
        own,
        *(
            Link(one.up_bytes_per_s or own.up_bytes_per_s, one.down_bytes_per_s or own.down_bytes_per_s)
            for one in helpers
        ),
    ]
    peers = volunteers + len(links)
    shares = _parts(division, range(1, len(links)), len(helpers))
    return _averages(links, shares, peers, relayed) > _averages(links, [1.0, *[0.0] * len(helpers)], peers)


def _averages(links: Sequence[Link], shares: Sequence[float], peers: int, relayed: int = 0) -> float:
    """Averages per second by these shares, times the vector's bytes: a machine's link carries its own share for all the
    others, and the others' shares once. `peers`: all machines and volunteers. `relayed`: volunteers whose other shares
    the first machine takes and hands on, both of gradients and of averages."""
    rates = []
    for at, (link, share) in enumerate(zip(links, shares, strict=True)):
        if not at or share:
            up, down = share * (peers - 1), share * (peers - len(links)) + (1.0 - share)
            if not at:
                up, down = up + 2 * relayed * (1.0 - share), down + relayed * (1.0 - share)
            else:
                up -= relayed * share
            rates += [link.up_bytes_per_s / up, link.down_bytes_per_s / down]
    return min(rates)


class Outcome:
    """Whether the first steps of an epoch are shorter than those before it. Later ones are not compared: volunteers
    come and go."""

    def __init__(self) -> None:
        self._before: deque[float] = deque(maxlen=JUDGED)
        self._within: list[float] = []
        self.gains = True
        """False once the first steps are known, and were not shorter."""

    def step_took(self, seconds: float, *, shared: bool) -> None:
        """A step took so long."""
        (self._within if shared else self._before).append(seconds)
        if shared and len(self._within) == len(self._before) == JUDGED:
            self.gains = median(self._within) < median(self._before)

    def epoch_begins(self) -> None:
        """The steps that come are judged anew."""
        self._within, self.gains = [], True
