"""What the links between stages carry, and how fast averages come over them, as the stages report it. Pure.

In: the bytes that each stage has sent to its peers so far, the bytes that came to it for a round, and the rates at
which the members' parts of it came. Out: rates for metrics.jsonl, and what moved for a round. Whether a link could
carry more, what it carries does not tell; the rate of a hop does, since a member sends its own part in one go.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ravnest.driver.observe.report import Hop
from ravnest.stage import messages as m

_MOST_ROUNDS = 64
"""So many rounds may be under way at a time; a stage that names more has them forgotten, the latest first."""

LinkReport = m.LinksUsed | m.RingFinishedMessage
_Link = tuple[str, str]
"""(sender, receiver): names of stages."""


@dataclass
class RoundTraffic:
    """What moved for one round of averaging."""

    hops: dict[_Link, float] = field(default_factory=dict)
    received: dict[tuple[str, int], int] = field(default_factory=dict)
    """By stage and ring: the bytes that came."""

    @property
    def slowest_hop(self) -> Hop | None:
        """The slowest hop; None where none was timed."""
        if not self.hops:
            return None
        sender, receiver = slowest = min(self.hops, key=lambda link: (self.hops[link], link))
        return Hop(sender, receiver, self.hops[slowest])

    @property
    def by_stage(self) -> dict[str, int]:
        """By stage: the bytes that came in all its rings."""
        found: dict[str, int] = {}
        for (stage, _), count in sorted(self.received.items()):
            found[stage] = found.get(stage, 0) + count
        return found


class LinkFigures:
    """The links of one run."""

    def __init__(self) -> None:
        self._sent: dict[str, tuple[float, m.LinksUsed]] = {}
        """By stage: when it last told what it has sent, and what it told."""
        self._rounds: dict[int, RoundTraffic] = {}
        """By round that is not committed yet."""
        self._news: dict[_Link, dict[str, float]] = {}

    def told(self, stage: str, message: LinkReport, now_s: float) -> None:
        """Take what a stage has reported at `now_s`."""
        match message:
            case m.LinksUsed():
                self._used(stage, message, now_s)
            case m.RingFinishedMessage():
                self._finished(stage, message)

    def _used(self, stage: str, message: m.LinksUsed, now_s: float) -> None:
        before = self._sent.get(stage)
        self._sent[stage] = now_s, message
        if before is None or now_s <= before[0]:
            return
        for name in ("pipeline_bytes", "bulk_bytes"):
            old, new = getattr(before[1], name), getattr(message, name)
            for peer, rate in _rates(old, new, now_s - before[0]).items():
                self._news.setdefault((stage, peer), {})[f"{name}_per_s"] = rate

    def _finished(self, stage: str, message: m.RingFinishedMessage) -> None:
        found = self._rounds.setdefault(message.round, RoundTraffic())
        found.received[stage, message.ring] = message.received_bytes  # told again in a new epoch, it counts once
        for sender, rate in message.hops.items():
            link = sender, stage
            found.hops[link] = min(rate, found.hops.get(link, rate))
            self._news.setdefault(link, {})["hop_bytes_per_s"] = rate
        if len(self._rounds) > _MOST_ROUNDS:
            del self._rounds[max(self._rounds)]

    def committed(self, round_: int) -> RoundTraffic:
        """What moved for a round that is committed. It and older rounds are forgotten."""
        found = self._rounds.get(round_, RoundTraffic())
        self._rounds = {number: each for number, each in self._rounds.items() if number > round_}
        return found

    def since_last(self) -> list[dict[str, object]]:
        """What was reported since the last call: for each link that is used its ends, and the rates that are known."""
        news, self._news = self._news, {}
        return [
            {"from": sender, "to": receiver, **{name: round(rate) for name, rate in rates.items()}}
            for (sender, receiver), rates in sorted(news.items())
        ]


def _rates(before: Mapping[str, int], now: Mapping[str, int], seconds: float) -> dict[str, float]:
    """Bytes per second by peer. A count that is lower than before is of a process that has begun anew."""
    return {peer: max(0, count - before.get(peer, 0)) / seconds for peer, count in now.items() if count}
