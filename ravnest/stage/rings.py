"""The rings of one stage: what it contributes goes out, averages come back, and it is told when a round may be merged.

In: contributions, commits and epochs from the driver, chunks from the other members. Out: chunks, reports of finished
rings to the driver, and averages. RingReducer moves the vectors; EpochMember says when a round may be merged, and what
becomes of rounds when clusters come and go. What a contribution is made of, and what a merge changes, is not known
here: rounds.py gives and takes vectors for a stage that trains, following.py for one that does not train yet.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from ravnest.errors import InvalidInput
from ravnest.stage import epoch_messages as em
from ravnest.stage import messages as m
from ravnest.stage import shadow_messages as shm
from ravnest.stage.epoch_rings import addresses_of, resume_of, segments_among
from ravnest.stage.message_fields import MOST_NAMED, MOST_RATE
from ravnest.stage.setup import SegmentSetup, StageSetup
from ring_allreduce import ContributionRefused, RingReducer
from ring_allreduce.ring import RING_KINDS, Feeding, RingResult
from ring_allreduce.rounds import (
    AcceptAverage,
    CommitRound,
    EpochInstruction,
    EpochMember,
    MergeRound,
    Reform,
    ReformRings,
    ReportFinished,
    ReportHeld,
    RestartRound,
    RingFinished,
    RoundContributed,
    SendAverage,
)
from ring_allreduce.transport import Delivery, Endpoint, Lane, Message

CHUNKS_BESIDE_FOLLOWERS = 8
"""Where a ring is followed, so many chunks for a member may be queued at once, which is 0.4 s of a link: what is sent
to a follower does not wait for the rest of them, and the link is not idle until chunks are sent again."""


@dataclass(frozen=True)
class SegmentContribution:
    """What one segment gives to a round: the progress, and the buffers as they are, averaged and taken ones."""

    ring: int
    vector: Tensor
    buffers: Tensor
    weight: float
    counters: tuple[int, ...]
    taken: Tensor = field(default_factory=lambda: torch.empty(0))
    follows: bool = False
    """Whether the stage has nothing to give, and takes part for the average alone."""


@dataclass(frozen=True)
class SegmentAverage:
    """What one segment gets back from a round."""

    vector: Tensor
    buffers: Tensor
    counters: tuple[int, ...]
    total_weight: float
    taken: Tensor = field(default_factory=lambda: torch.empty(0))


class RoundRings(Protocol):
    """What takes averages of some rings: those of a stage in them, or that follows them (shadowing.py)."""

    @property
    def segments(self) -> Mapping[int, SegmentSetup]: ...

    @property
    def committed(self) -> int: ...

    @property
    def first_round(self) -> int | None: ...

    def contribute(self, round: int, contributions: Sequence[SegmentContribution]) -> None: ...  # noqa: A002

    def take(self, round: int) -> tuple[dict[int, SegmentAverage], bool]: ...  # noqa: A002

    def takers(self, ring: int) -> tuple[str, ...]: ...

    def release(self, round: int) -> None: ...  # noqa: A002


class StageRings:
    """All rings of one stage. `take` belongs to whoever has the stage's lock, and the other methods to the thread that
    owns the endpoint."""

    def __init__(self, setup: StageSetup, endpoint: Endpoint, *, joins: bool = False) -> None:
        """`endpoint`: sends the chunks of the setup's rings, and RingFinished messages to the driver. `joins`: the
        stage takes part from the epoch on of which it is told first; until then chunks are held as they come."""
        self._endpoint = endpoint
        self._segments = {segment.ring: segment for segment in setup.segments}
        self._segment_of = {spec.name: segment for segment in setup.segments for spec in segment.rings}
        specs = [spec for segment in setup.segments for spec in segment.rings]
        self._max_lag = setup.job.max_lag
        self._feeding = Feeding(endpoint, 2 * self._max_lag + 2)
        self._followers: dict[int, tuple[str, ...]] = {}
        done = self._feeding.completed
        self._reducer = RingReducer(endpoint, specs, max_rounds=self._max_lag, completed=done)
        self._member = EpochMember(endpoint.name, paused=joins)
        self._early: list[Delivery] | None = [] if joins else None
        """What came of the rings before the stage knew its first round; None once it does."""
        self._held_back: list[tuple[int, Sequence[SegmentContribution]]] = []
        """Contributions of rounds whose epoch is only beginning."""
        self._refused: set[str] = set()
        """The members of whom the driver was told in this epoch that what they gave cannot be averaged."""
        self._results: dict[int, dict[str, RingResult]] = {}
        self._saves: set[int] = set()
        self.on_ring_finished: Callable[[int, int], None] | None = None
        """Is called with each (round, ring) whose average is here."""
        self.tell: Callable[[Message], None] = lambda message: endpoint.send(m.DRIVER, Lane.PIPELINE, message)
        """Tells the driver. A stage that trains has its own way, in order with all else that it tells."""

    @property
    def segments(self) -> Mapping[int, SegmentSetup]:
        """The stage's segments by ring, with the members that they have in this epoch."""
        return self._segments

    @property
    def committed(self) -> int:
        """The newest round that may be merged here, 0 before the first."""
        return self._member.committed

    @property
    def first_round(self) -> int | None:
        """The first round that the stage takes part in; None while it is not told."""
        return None if self._early is not None else self._member.first_round

    # A round's way through the rings, in order.

    def contribute(self, round: int, contributions: Sequence[SegmentContribution]) -> None:  # noqa: A002 - our word
        """Give the segments' parts to the rings; while an epoch begins, once it has begun."""
        if self._member.paused:
            self._held_back.append((round, contributions))
            return
        self._follow(self._member.handle(RoundContributed(round)))
        for part in contributions:
            segment = self._segments[part.ring]
            self._give(round, segment.progress.name, part.vector, part.weight, part.counters)
            if segment.averaged_buffers is not None:
                self._give(round, segment.averaged_buffers.name, part.buffers, part.weight)
            if segment.taken_buffers is not None:
                first = segment.members[0] == self._endpoint.name and not part.follows
                self._give(round, segment.taken_buffers.name, part.taken, float(first))

    def on_delivery(self, delivery: Delivery) -> bool:
        """Take a delivery if it is about the rings: a chunk, or who follows them. Returns whether it was.

        Raises InvalidInput for followers of a ring that this stage is not in.
        """
        if isinstance(delivery.message, shm.Followers) and delivery.sender == m.DRIVER:
            self._fed(delivery.message)
            return True
        if self._early is not None and isinstance(delivery.message, RING_KINDS):
            self._early.append(delivery)
            return True
        return self._feeding.on_delivery(delivery) or self._reduce(delivery)

    def _reduce(self, delivery: Delivery) -> bool:
        """Let the rings take a delivery. Returns whether it is of one."""
        try:
            return self._reducer.on_delivery(delivery)
        except ContributionRefused as error:
            self._refuse(error)
            return True

    def _give(
        self,
        round: int,  # noqa: A002 - our word
        ring: str,
        vector: Tensor,
        weight: float,
        counters: tuple[int, ...] = (),
    ) -> None:
        """Contribute to a ring. What others gave to it before is judged now."""
        try:
            self._reducer.contribute(round, ring, vector, weight, counters)
        except ContributionRefused as error:
            self._refuse(error)

    def _refuse(self, error: ContributionRefused) -> None:
        """What a member gives that cannot be averaged leaves the rings as they are. The driver is told of it, once in
        an epoch, and decides who of the two leaves. Raises the error where this stage is that member."""
        if error.member == self._endpoint.name:
            raise error
        ring = next((each.ring for each in self._segments.values() if error.member in each.members), None)
        if ring is None or error.member in self._refused:
            return  # who is in none of its rings changes nothing
        self._refused.add(error.member)
        round_, epoch, reason = self.committed, self._member.epoch, str(error)[: em.MOST_REASON]
        self.tell(em.MemberRefused(round=round_, ring=ring, epoch=epoch, member=error.member, reason=reason))

    def _fed(self, message: shm.Followers) -> None:
        """These warm spares follow from now on."""
        self._followers = {each.ring: each.followers for each in message.rings}
        if not self._followers.keys() <= self._segments.keys():
            raise InvalidInput(f"this stage is in the rings {sorted(self._segments)}, not in {sorted(self._followers)}")
        self._endpoint.connect(addresses_of(message.peers))
        names = {spec.name: each.ring for each in self._segments.values() for spec in each.rings}
        self._feeding.feed({name: self._followers.get(ring, ()) for name, ring in names.items()})

    def takers(self, ring: int) -> tuple[str, ...]:
        """Who may be given the state of a segment: the ring's members, and the spares that follow it."""
        segment = self._segments.get(ring)
        return () if segment is None else (*segment.members, *self._followers.get(ring, ()))

    def on_committed(self, message: m.RoundCommittedMessage) -> list[int]:
        """Take a commit. Returns the rounds that may be merged now."""
        if message.save:
            self._saves.add(message.round)
        return self._follow(self._member.handle(CommitRound(message.round, self._member.epoch)))

    def on_reformed(self, message: em.RingsReformedMessage) -> list[int]:
        """An epoch begins: stop the rings and answer what is whole here. Returns the rounds that may be merged now.

        Raises InvalidInput where these rings cannot become those of the message.
        """
        merges = self.pump()  # what became whole is told before the rings are stopped
        rings = {str(ring.ring): ring.members for ring in message.rings}
        orders = self._member.handle(Reform(message.epoch, rings, message.committed, dict.fromkeys(message.lost, "")))
        if any(isinstance(order, ReformRings) for order in orders):
            self._reform(message)
        return merges + self._follow(orders)

    def on_resumed(self, message: em.RoundsResumedMessage) -> list[int]:
        """The epoch has begun everywhere: go on with the rounds. Returns the rounds that may be merged now.

        Raises InvalidInput where the message has averages handed on that are not of these rings.
        """
        resume = resume_of(self._segments, self._endpoint.name, message)
        orders = self._member.handle(resume)
        if self._early is not None and not self._member.paused:
            self._begin()
        merges = self._follow(orders)
        if not self._member.paused:
            held_back, self._held_back = self._held_back, []
            for number, contributions in held_back:
                self.contribute(number, contributions)
        return merges

    def _reform(self, message: em.RingsReformedMessage) -> None:
        """Take the new rings, all at once: the computing thread may be reading the old ones."""
        self._segments = segments_among(self._segments, message)
        self._segment_of = {spec.name: segment for segment in self._segments.values() for spec in segment.rings}
        self._endpoint.epoch = message.epoch
        self._refused.clear()
        self._endpoint.disconnect(message.lost)
        self._endpoint.connect(addresses_of(message.peers))
        self._feeding.stop()
        self._reducer.reform([spec for segment in self._segments.values() for spec in segment.rings])

    def _begin(self) -> None:
        """The stage knows its first round: what came of the rings before that is taken now.

        A later epoch may make an earlier round its first, which was kept in this one. So the reducer takes part from
        the first round on that is not committed, and lets chunks come for as many rounds more as may be kept.
        """
        early, self._early = self._early or [], None
        specs = [spec for segment in self._segments.values() for spec in segment.rings]
        first, most = self._member.committed + 1, 2 * self._max_lag + 1
        done = self._feeding.completed
        self._reducer = RingReducer(self._endpoint, specs, max_rounds=most, first_round=first, completed=done)
        self._reducer.most_queued = self._most_queued
        for delivery in early:
            self._reduce(delivery)

    @property
    def _most_queued(self) -> int | None:
        return CHUNKS_BESIDE_FOLLOWERS if self._followers else None

    def _follow(self, orders: Sequence[EpochInstruction]) -> list[int]:
        """Carry out what the member's machine says, but for ReformRings. Returns the rounds that may be merged now."""
        merges = []
        for order in orders:
            match order:
                case MergeRound():
                    merges.append(order.round)
                case ReportFinished():
                    ring = int(order.ring)
                    self.tell(self._finished(order.round, self._segments[ring], order.epoch))
                    if self.on_ring_finished is not None:
                        self.on_ring_finished(order.round, ring)
                case ReportHeld():
                    holding = tuple((int(ring), number) for ring, number in order.holding)
                    self.tell(em.RoundsHeld(epoch=order.epoch, holding=holding))
                case RestartRound():
                    self._results.pop(order.round, None)
                    self._reducer.restart(order.round)
                case SendAverage():
                    for spec in self._segments[int(order.ring)].rings:
                        self._reducer.hand_on(order.round, spec.name, order.to)
                case AcceptAverage():
                    here = self._reducer.holding()
                    for spec in self._segments[int(order.ring)].rings:
                        if (spec.name, order.round) not in here:
                            self._reducer.accept(order.round, spec.name, order.holder)
        return merges

    def _finished(self, number: int, segment: SegmentSetup, epoch: int) -> m.RingFinishedMessage:
        arrived, hops = self._results[number], self._hops(segment)
        came = sum(arrived[spec.name].received_bytes for spec in segment.rings)
        return m.RingFinishedMessage(round=number, ring=segment.ring, epoch=epoch, received_bytes=came, hops=hops)

    def _hops(self, segment: SegmentSetup) -> dict[str, float]:
        """The bytes per second at which members' own parts of a segment came, by member, as last measured."""
        stats = self._reducer.stats.get(segment.progress.name)
        found = {} if stats is None else stats.hops
        known = [member for member in segment.members if member in found][:MOST_NAMED]
        return {member: min(found[member], MOST_RATE) for member in known}

    def pump(self) -> list[int]:
        """Send chunks, tell the driver of finished rings, and return the rounds that may be merged now.

        What followers lack goes first: a warm spare that waits for an average cannot take a place meanwhile.
        """
        self._feeding.pump()
        self._reducer.most_queued = self._most_queued
        self._reducer.pump()
        merges = []
        for result in self._reducer.finished():
            tells = self._segment_of[result.ring].members[0] == self._endpoint.name
            self._feeding.whole(result, tells=tells)
            segment, arrived = self._segment_of[result.ring], self._results.setdefault(result.round, {})
            arrived[result.ring] = result
            if all(spec.name in arrived for spec in segment.rings):
                if (progress := arrived[segment.progress.name]).contributions:
                    self.tell(_seen(segment, progress, arrived, self._member.epoch))
                merges += self._follow(self._member.handle(RingFinished(str(segment.ring), result.round)))
        self._feeding.pump()
        return merges

    def take(self, round: int) -> tuple[dict[int, SegmentAverage], bool]:  # noqa: A002 - our word
        """The averages of a round by ring, and whether the stage's state is to be saved. This call forgets both.

        The averages' memory is used again once `release` was called.
        """
        save = round in self._saves
        self._saves.discard(round)
        results = self._results.pop(round, {})
        return {ring: average_of(results, segment) for ring, segment in self._segments.items() if results}, save

    def release(self, round: int) -> None:  # noqa: A002 - our word
        """The round is merged here, so nobody can ask for it any more: let go of its memory."""
        self._reducer.commit(round)

    def save_nothing(self) -> None:
        """Forget which rounds were to be saved: the driver that wanted it is gone."""
        self._saves.clear()

    @property
    def unmerged(self) -> list[tuple[str, int]]:
        """(ring, round) of the averages that are whole here and whose memory is not released yet."""
        return self._reducer.holding()


def member_rings(rings: RoundRings) -> StageRings:
    """The rings of a stage that trains, which is a member of them."""
    assert isinstance(rings, StageRings)
    return rings


def _seen(
    segment: SegmentSetup, progress: RingResult, arrived: Mapping[str, RingResult], epoch: int
) -> em.ContributionsSeen:
    """What this stage has seen of the contributions to a round of a segment: figures of the progress, and digests of
    all that a robust rule averages there. Where it was not there for all of it, it tells no digests."""
    known = list(progress.contributions.items())[:MOST_NAMED]
    members = {member: (each.norm, each.distance, each.cosine, each.weight) for member, each in known}
    parts = [arrived[spec.name].digests for spec in segment.rings if spec.robust is not None]
    whole = {member: tuple(part[member] for part in parts) for member in members if all(member in p for p in parts)}
    return em.ContributionsSeen(round=progress.round, ring=segment.ring, epoch=epoch, members=members, digests=whole)


def average_of(results: Mapping[str, RingResult], segment: SegmentSetup) -> SegmentAverage:
    """What a segment gets back, from the results of its rings by name."""
    progress = results[segment.progress.name]
    learned, first = (
        None if ring is None else results[ring.name] for ring in (segment.averaged_buffers, segment.taken_buffers)
    )
    buffers = torch.empty(0) if learned is None else learned.average
    taken = torch.empty(0) if first is None or first.total_weight == 0 else first.average
    return SegmentAverage(progress.average, buffers, progress.counters, progress.total_weight, taken)
