"""A warm spare: a process that follows the rings of the stage that it shadows, and takes its place when that is lost.

In: deliveries. Out: a stage that holds the anchor at all times, tells the driver when it does, and stops with its state
when it is told to take the place:

    FollowFrom ─► takes the anchor from donors, and every average since ─► holds the anchor ─ TakePlace ─► stopped

It contributes to no round and nobody waits for it (ring_allreduce/ring/following.py). What it merges are the same bytes
in the same order as every member, by the same code. Where an average stays away, it says so, and begins anew. One that
is to take the place asks the members that live for what it lacks of the last committed round, since the lost stage has
completed a part of that.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from ravnest.errors import InvalidInput, NodeLost, RunFailed
from ravnest.stage import donor_messages as dm
from ravnest.stage import epoch_messages as em
from ravnest.stage import messages as m
from ravnest.stage import shadow_messages as shm
from ravnest.stage.compute import StageCompute
from ravnest.stage.epoch_rings import addresses_of
from ravnest.stage.following import RoundFollower
from ravnest.stage.joining import Build, HeldStage
from ravnest.stage.messages import ALIVE_EVERY_S, STOOD_STILL_S
from ravnest.stage.orphan import orphan_deadline
from ravnest.stage.rings import SegmentAverage, SegmentContribution, average_of
from ravnest.stage.rounds import StageRounds
from ravnest.stage.segment_taking import SegmentTaking, Send
from ravnest.stage.setup import SegmentSetup, StageSetup
from ring_allreduce.ring import FollowedMissing, FollowedRounds, FollowedTaken, RingResult
from ring_allreduce.rounds import AwakeTime, SilenceDeadline
from ring_allreduce.transport import Delivery, Endpoint, Lane, Unacceptable

_POLL_S = 0.25

AVERAGE_FLOOR_S = 30.0
"""The least time without one more piece of an average of a committed round, after which it does not come any more."""

QUIET_S = 1.0
"""Members that live have sent what they completed when nothing has come for so long."""

LAST_FLOOR_S = 3.0
"""The same when the spare is to take the place: then the rest comes from donors."""


class FollowedRings:
    """The rings that a stage follows and is in none of: what `RoundFollower` and `StageRounds` need of rings."""

    def __init__(self, setup: StageSetup, first_round: int) -> None:
        self.segments: Mapping[int, SegmentSetup] = {segment.ring: segment for segment in setup.segments}
        self.first_round: int | None = first_round
        self.committed = first_round - 1
        self._results: dict[int, dict[str, RingResult]] = {}

    def put(self, round: int, results: Mapping[str, RingResult]) -> None:  # noqa: A002 - our word
        """These averages of a committed round are here, by the names of their rings."""
        self.committed = round
        self._results[round] = dict(results)

    def contribute(self, round: int, contributions: Sequence[SegmentContribution]) -> None:  # noqa: A002 - our word
        """Whoever follows gives nothing."""

    def take(self, round: int) -> tuple[dict[int, SegmentAverage], bool]:  # noqa: A002 - our word
        """The averages of a round by ring, which this call forgets; such a stage saves nothing."""
        results = self._results.pop(round)
        return {ring: average_of(results, segment) for ring, segment in self.segments.items()}, False

    def takers(self, ring: int) -> tuple[str, ...]:
        """A follower gives nothing."""
        return ()

    def release(self, round: int) -> None:  # noqa: A002 - our word
        """Nobody asks a follower for an average."""


class ShadowStage:
    """One warm spare. It has what a stage has that stops to stand by."""

    def __init__(
        self,
        setup: StageSetup,
        endpoint: Endpoint,
        build: Build,
        started: Callable[[], m.StageStarted],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Arguments:
            setup: of the stage that is shadowed, under this spare's own name.
            build: makes the parts of the stage when its state is here.
            started: makes what the driver is told once the spare holds the anchor.
            now: the clock, in seconds.
        """
        self.setup = setup
        self.endpoint = endpoint
        self._build = build
        self._started = started
        self._now = now
        self._specs = {spec.name: spec for segment in setup.segments for spec in segment.rings}
        self._most_rounds = 2 * setup.job.max_lag + 2
        self._begin(0)
        self._awake = AwakeTime(STOOD_STILL_S, ALIVE_EVERY_S)
        self._driver = orphan_deadline(self._awake.at(now()))
        self._next_alive_s = now()
        self.takes_place: shm.TakePlace | None = None
        """The order by which it is to take the place of the stage; None otherwise."""
        self.stopped = False
        self.stands_by: em.StandBy | None = None
        self.term = 0
        """That of the driver which the spare hears."""
        self.left: list[Delivery] = []

    def _begin(self, round_: int) -> None:
        """Follow the rounds after `round_`, with nothing in hand."""
        self._round = self._committed = round_
        self._rings = FollowedRings(self.setup, round_ + 1)
        self._follower = RoundFollower(self.setup, self._rings)
        self._followed = FollowedRounds({name: spec.elements for name, spec in self._specs.items()}, self._most_rounds)
        self._followed.commit(round_)
        self._taking = SegmentTaking(self.setup)
        self._held: HeldStage | None = None
        self._pieces = 0
        self._awaited: SilenceDeadline | None = None
        """By when more of the average has to come that is committed and not here; None where none is."""
        self._senders: set[str] = set()
        self._last_piece_s = -math.inf
        self._asked: set[tuple[str, int]] = set()
        """The (ring, round) of which members were asked for what is missing."""

    @property
    def compute(self) -> StageCompute | None:
        """What will compute, once the spare holds the anchor."""
        return None if self._held is None else self._held.compute

    @property
    def rounds(self) -> StageRounds | None:
        """The anchor, once the spare holds it."""
        return None if self._held is None else self._held.rounds

    def turn(self, timeout_s: float = _POLL_S) -> None:
        """One pass of the loop, which waits for at most `timeout_s`. Raises NodeLost when the driver is silent."""
        for delivery in self.endpoint.poll(timeout_s):
            try:
                self._take(delivery)
            except InvalidInput as error:
                self._fall_behind(f"{delivery.sender} sent what no member sends: {error}")
        if self.stopped:
            return
        awake_s = self._awake.at(self._now())
        self._merge(awake_s)
        if self.takes_place is not None:
            self._ask_members(awake_s)
        self._send(self._taking.late(awake_s))
        self._hold()
        self._say_alive(awake_s)
        order = self.takes_place
        if order is not None and (self._rings.committed >= order.round or self._expired(awake_s)):
            self.stopped = True

    def _take(self, delivery: Delivery) -> None:
        message = delivery.message
        if self._followed.on_delivery(delivery):
            self._pieces += 1
            self._last_piece_s = self._awake.at(self._now())
            self._senders.add(delivery.sender)
            if self._awaited is not None:
                self._awaited.heard(self._awake.at(self._now()))
            return
        if isinstance(message, Unacceptable):
            self._send(self._taking.fails(delivery.sender, f"it sent what no stage sends: {message.reason}"))
            return
        if delivery.sender != m.DRIVER:
            newest = self._committed + self._most_rounds
            self._send(self._taking.take(delivery, newest, self._awake.at(self._now())) or [])
            return
        self.term = max(self.term, delivery.epoch)
        self._driver.heard(self._awake.at(self._now()))
        match message:
            case shm.FollowFrom():
                self.endpoint.epoch = message.epoch
                self._connect(message.peers)
                self._begin(message.round)
            case shm.PeersMoved():
                self._connect(message.peers)
            case dm.TakeSegments() if self._held is None:
                self._send(self._taking.ask(message.sources, self._round, self._awake.at(self._now())))
            case em.RoundsResumedMessage():
                self.endpoint.epoch = message.epoch
                self._followed.resumed(message.epoch, message.kept)
            case m.RoundCommittedMessage():
                self._committed = max(self._committed, message.round)
                self._followed.final(self._committed)
            case shm.TakePlace():
                self.takes_place = message
                self._committed = max(self._committed, message.round)
                self._followed.final(self._committed)
                self._last_piece_s = self._awake.at(self._now())  # of an average that has just begun to come, too
                self._awaited = SilenceDeadline(self._last_piece_s, floor_s=LAST_FLOOR_S)
            case m.Stop() | em.TakeOver():  # a new driver begins its own spares
                self.stopped = True
            case _:
                pass

    def _connect(self, peers: Iterable[em.PeerPlace]) -> None:
        self.endpoint.connect(addresses_of(peers))

    def _merge(self, awake_s: float) -> None:
        """Merge the rounds that are committed, in order, as far as their averages are here."""
        while self._rings.committed < self._committed:
            number = self._rings.committed + 1
            results = {name: self._followed.whole(name, number) for name in self._specs}
            found = {name: result for name, result in results.items() if result is not None}
            if len(found) < len(results):
                if self._awaited is None:
                    self._awaited = SilenceDeadline(awake_s, floor_s=AVERAGE_FLOOR_S)
                elif self.takes_place is None and self._awaited.expired(awake_s):
                    missing = sorted(results.keys() - found.keys())
                    self._fall_behind(f"the averages of round {number} of {missing} stay away")
                return
            self._follower.follow(number)
            self._rings.put(number, found)
            try:
                self._follower.merge([number])
            except RunFailed as error:  # more averages have come than may be kept before the anchor is here
                self._fall_behind(str(error))
                return
            self._followed.commit(number)
            for peer in self._senders:
                self.endpoint.send(peer, Lane.PIPELINE, FollowedTaken(round=number))
        if self.takes_place is None:
            self._awaited = None

    def _ask_members(self, awake_s: float) -> None:
        """Ask members that live for what is missing of the rounds that are committed, each for an equal part.

        They are asked once they have sent what they completed themselves: it is on its way, and would come twice.
        """
        is_quiet = awake_s >= self._last_piece_s + QUIET_S
        lost = None if self.setup.successor is None else self.setup.successor.name
        for number in range(self._rings.committed + 1, self._committed + 1):
            for name, spec in self._specs.items():
                living = [each for each in spec.members if each != lost]
                if (name, number) in self._asked or not (is_quiet or self._followed.is_ended(name, number)):
                    continue
                if living and self._followed.whole(name, number) is None:
                    self._asked.add((name, number))
                    parts = divided(self._followed.missing(name, number), len(living))
                    for member, spans in zip(living, parts, strict=True):
                        missing = FollowedMissing(ring=name, round=number, spans=spans)
                        self.endpoint.send(member, Lane.PIPELINE, missing)

    def _expired(self, awake_s: float) -> bool:
        return self._awaited is not None and self._awaited.expired(awake_s)

    def _fall_behind(self, reason: str) -> None:
        """Let go of everything, and ask the driver to begin anew. One that is taking its place goes on without."""
        self._begin(self._committed)
        self.endpoint.send(m.DRIVER, Lane.PIPELINE, shm.FellBehind(reason=reason[:1000]))

    def _hold(self) -> None:
        """Make the stage's parts, once its state is whole, and bring its anchor up to date."""
        if self._held is not None or not self._taking.whole:
            return
        anchor_of = {ring: each.round for ring, each in self._taking.taken.items()}
        if max(anchor_of.values(), default=0) > self._follower.reached:
            return  # the averages up to that round are still on their way here
        held = self._build(self._taking.weights, self._taking.outer, 0, self._rings)
        self._follower.adopt(held.rounds, anchor_of)
        self._held = held
        self._taking = SegmentTaking(self.setup)
        self.endpoint.send(m.DRIVER, Lane.PIPELINE, self._started())

    def _send(self, messages: Iterable[Send]) -> None:
        for peer, message in messages:
            self.endpoint.send(peer, Lane.PIPELINE, message)

    def _say_alive(self, awake_s: float) -> None:
        now_s = self._now()
        if now_s >= self._next_alive_s:
            self._next_alive_s = now_s + ALIVE_EVERY_S
            finished = self._taking.pieces + self._pieces
            self.endpoint.send(m.DRIVER, Lane.PIPELINE, m.Alive(finished=finished))
        if self._driver.expired(awake_s):
            raise NodeLost(f"the driver has been silent for {self._driver.silent_s(awake_s):.0f} s")


def divided(spans: Sequence[tuple[int, int]], parts: int) -> list[tuple[tuple[int, int], ...]]:
    """Divide spans [start, stop) into lists of spans that hold as many elements each, but for a remainder."""
    share = -(-sum(stop - start for start, stop in spans) // parts)
    found: list[list[tuple[int, int]]] = [[] for _ in range(parts)]
    index, room = 0, share
    for start, stop in spans:
        while start < stop:
            end = min(stop, start + room)
            found[index].append((start, end))
            start, room = end, room - (end - start)
            if not room:
                index, room = index + 1, share
    return [tuple(each) for each in found]
