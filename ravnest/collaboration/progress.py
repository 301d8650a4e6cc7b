"""How full the batch is, from reports that come now and then: what is asked of a peer is never an answer. Pure.

A peer says how many samples it has, how fast it makes them, and how many one micro-batch holds. Between two reports its
count is extrapolated, in whole micro-batches: so the moment at which the batch is full is known without a round trip.
Of the micro-batches that are being computed then, only those that are still needed are waited for, and those that
finish first; the others may be finished too where they make the batch hardly larger.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

MOST_OVER = 0.05
"""Micro-batches under way are waited for, instead of being thrown away, up to this part of a batch beyond it, and of
the time that a batch takes beyond those that are needed: a machine that takes long for one holds nobody up."""

SOON = 2.0
"""A micro-batch under way is counted on if it ends within so many times what all together need to make as many samples
as are under way: of equal machines each one's. One that takes longer is made up for sooner by the others."""

TRUSTED_REPORTS = 3.0
"""A peer that is silent is taken to go on for so many times the interval of its reports, and no further."""

REPORT_S = 1.0
"""Progress is told at least this often."""

LEAST_REPORT_S = 0.05
OFF = 0.02
"""Progress is told, too, when it is off what is extrapolated by this part of a batch and two micro-batches, though not
twice in LEAST_REPORT_S."""


@dataclass(frozen=True)
class Report:
    """What a peer said of the step that is under way, and when it came."""

    samples: int
    """Whole micro-batches that it has added up and not sent."""
    samples_per_s: float
    micro_batch: int
    at_s: float
    every_s: float
    """It reports at least so often."""
    most: float = math.inf
    """It computes no more than so many samples by itself."""

    def whole(self, now_s: float) -> int:
        """Its samples by now, as extrapolated, in whole micro-batches."""
        seconds = min(max(0.0, now_s - self.at_s), TRUSTED_REPORTS * self.every_s)
        made = math.floor(seconds * self.samples_per_s / self.micro_batch)
        if self.most < math.inf:
            made = min(made, max(0, math.ceil((self.most - self.samples) / self.micro_batch)))
        return self.samples + self.micro_batch * made

    def is_off(self, samples: int, target_batch: int, now_s: float) -> bool:
        """Whether its peer, which has so many samples now, has to report anew."""
        silent_s = now_s - self.at_s
        most = max(2 * self.micro_batch, OFF * target_batch)
        return silent_s >= REPORT_S or (silent_s >= LEAST_REPORT_S and abs(samples - self.whole(now_s)) > most)

    def computes(self, now_s: float) -> bool:
        """Whether a micro-batch is under way that is counted on."""
        return self.samples_per_s > 0 and self.trusted(now_s) and self.whole(now_s) < self.most

    def trusted(self, now_s: float) -> bool:
        """Whether it was heard so lately that its next micro-batch is counted on."""
        return now_s - self.at_s <= TRUSTED_REPORTS * self.every_s

    def next_s(self, now_s: float) -> float:
        """When the micro-batch under way is expected to be whole."""
        if self.samples_per_s <= 0:
            return math.inf
        made = (self.whole(now_s) - self.samples) // self.micro_batch
        return self.at_s + (made + 1) * self.micro_batch / self.samples_per_s


def expected(reports: Mapping[str, Report], now_s: float) -> int:
    """The samples that all have together, with the micro-batches under way."""
    under_way = [report for report in reports.values() if report.computes(now_s)]
    rate = sum(report.samples_per_s for report in under_way)
    soon_s = now_s + SOON * sum(report.micro_batch for report in under_way) / rate if under_way else now_s
    return sum(report.whole(now_s) for report in reports.values()) + sum(
        report.micro_batch for report in under_way if report.next_s(now_s) <= soon_s
    )


def full_at_s(reports: Mapping[str, Report], needed: float, now_s: float, horizon_s: float) -> float | None:
    """When `needed` samples are reached, with those under way; None where that is more than `horizon_s` ahead."""
    if expected(reports, now_s) >= needed:
        return now_s
    low_s, high_s = now_s, now_s + horizon_s
    if expected(reports, high_s) < needed:
        return None
    while high_s - low_s > 1e-4 * max(1.0, horizon_s):
        middle_s = (low_s + high_s) / 2
        if expected(reports, middle_s) >= needed:
            high_s = middle_s
        else:
            low_s = middle_s
    return high_s


def quotas(reports: Mapping[str, Report], needed: float, now_s: float) -> dict[str, int]:
    """At how many samples each peer is to stop and send, so that together they have `needed` soon and hardly more."""
    stops = {peer: report.whole(now_s) for peer, report in reports.items()}
    missing = needed - sum(stops.values())
    room = MOST_OVER * needed
    rate = sum(report.samples_per_s for report in reports.values())
    until_s = now_s + (room / rate if rate else 0.0)
    for peer in sorted(reports, key=lambda one: (reports[one].next_s(now_s), one)):
        report = reports[peer]
        if not report.computes(now_s):
            continue
        if missing > 0:
            until_s = max(until_s, report.next_s(now_s) + room / rate)
        elif report.micro_batch - missing > room or report.next_s(now_s) > until_s:
            continue
        stops[peer] += report.micro_batch
        missing -= report.micro_batch
    return stops


def parts_of_batch(known: Mapping[str, Report], target_batch: int, now_s: float) -> dict[str, int]:
    """How many samples of a batch that begins now fall to each peer, by what is known of it. Those whose rate is known
    fill it together; it is empty where none is."""
    fresh = {peer: replace(one, samples=0, at_s=now_s, every_s=math.inf) for peer, one in known.items()}
    fresh = {peer: one for peer, one in fresh.items() if one.samples_per_s}
    if not fresh:
        return {}
    whole = target_batch + sum(one.micro_batch for one in fresh.values())  # of each less than one is lost
    rate = sum(one.samples_per_s for one in fresh.values())
    full_s = full_at_s(fresh, target_batch, now_s, 1.01 * whole / rate)
    return {} if full_s is None else dict.fromkeys(known, 0) | quotas(fresh, target_batch, full_s)


def trials(micro_batches: Mapping[str, int], target_batch: int, turn: int) -> dict[str, int]:
    """A micro-batch for who is doubted, has no rate yet, or is asked for nothing; nobody waits for it.

    They would never compute where each one's part is told before the step begins, and who was slow once would stay so.
    Only as many at a time as fit MOST_OVER; another `turn` begins with others.
    """
    peers, room, found = sorted(micro_batches), MOST_OVER * target_batch, dict[str, int]()
    turn %= max(1, len(peers))
    for peer in (peers * 2)[turn : turn + len(peers)]:
        if not found or room >= micro_batches[peer]:
            found[peer] = micro_batches[peer]
            room -= micro_batches[peer]
    return found


def donors(held: Mapping[str, int], needed: int, target_batch: int) -> set[str]:
    """Whose samples make up for `needed` ones that are missing: who gives, gives all that it has.

    They have that many together, or hardly more; or they have less, and make what is left. Only where everyone has more
    than is needed the batch becomes larger, by as little as can be.
    """
    found, missing, rest = set[str](), needed, dict[str, int]()
    for peer in sorted(held, key=lambda one: (-held[one], one)):
        if held[peer] <= missing:
            found.add(peer)
            missing -= held[peer]
        else:
            rest[peer] = held[peer]
    least = min(rest, key=lambda one: (rest[one], one), default=None)
    if missing and least is not None and (not found or rest[least] - missing <= MOST_OVER * target_batch):
        found.add(least)
    return found
