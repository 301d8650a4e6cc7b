"""A stage of a cluster that joins a run which is under way: from its first message until it trains.

In: deliveries. Out: a stage that follows the rounds, holds the anchor once the driver has sent it, says so, and becomes
a StageRuntime when the driver lets its cluster train:

    RingsReformed, RoundsResumed ─► follows rounds without weight ─ state of round r ─► holds today's anchor
                                                                   ─ TrainFrom ─► trains

The state comes from members of its rings, which the driver names, each segment by itself; or all of it from the driver,
which has it of a checkpoint. What comes for the stage that it will be, as a first activation, is kept until then.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Protocol

import torch
from torch import Tensor

from ravnest.errors import InvalidInput, NodeLost, RunFailed
from ravnest.stage import donor_messages as dm
from ravnest.stage import epoch_messages as em
from ravnest.stage import messages as m
from ravnest.stage.compute import StageCompute
from ravnest.stage.following import RoundFollower
from ravnest.stage.messages import ALIVE_EVERY_S, STOOD_STILL_S
from ravnest.stage.orphan import orphan_deadline
from ravnest.stage.rings import RoundRings, StageRings
from ravnest.stage.rounds import StageRounds
from ravnest.stage.runtime import StageRuntime
from ravnest.stage.segment_taking import SegmentTaking, Send
from ravnest.stage.setup import StageSetup
from ravnest.stage.standing_by import KeptState
from ring_allreduce.rounds import AwakeTime
from ring_allreduce.transport import Delivery, Endpoint, Lane, Outbox, Unacceptable

_POLL_S = 0.25
MOST_EARLY = 4096
"""The most messages that are kept for the stage that trains. Its neighbours send a window of them at most."""


class ArrivingState:
    """The weights and the optimizer state of a stage, as the driver sends them."""

    def __init__(self) -> None:
        self.begin: m.Begin | None = None
        self.weights: dict[str, Tensor] = {}
        self.optimizer: dict[tuple[str, str], Tensor] = {}
        """By (parameter name, the optimizer's key)."""

        self.pieces = 0
        """How many messages with tensors, or with pieces of them, have come."""
        self._filled: dict[tuple[str, str, str], int] = {}
        """By part, name and key: how many elements of a tensor have come of which more is to come."""

    def forget(self) -> None:
        """The stage has taken over what has come: let go of it."""
        self.begin = None
        self.weights, self.optimizer = {}, {}

    @property
    def whole(self) -> m.Begin | None:
        """The message by which the stage begins, once all that it announces is here."""
        begin, tensors = self.begin, len(self.weights) + len(self.optimizer)
        return None if begin is None or tensors < begin.tensors or self._filled else begin

    def take(self, delivery: Delivery) -> bool:
        """Take a delivery of the driver, if it is of the state. Returns whether it was.

        Raises RunFailed for a piece that does not follow those before it.
        """
        message = delivery.message
        if isinstance(message, m.Begin):
            self.begin = message
        elif isinstance(message, m.StateTensor) and len(delivery.tensors) == 1:
            self.pieces += 1
            if message.shape is not None:
                self._fill(message, message.shape, delivery.tensors[0])
            else:
                self._set(message, delivery.tensors[0].clone())  # it may lie in memory that the driver shares
        else:
            return False
        return True

    def _fill(self, message: m.StateTensor, shape: tuple[int, ...], piece: Tensor) -> None:
        place = message.part, message.name, message.key
        filled, elements = self._filled.pop(place, 0), prod(shape)
        if message.start == 0:
            self._set(message, torch.empty(shape, dtype=piece.dtype))
        whole, follows = self._get(message), message.start == filled and filled + piece.numel() <= elements
        if whole is None or not follows or piece.dim() != 1 or (whole.shape, whole.dtype) != (shape, piece.dtype):
            raise RunFailed(f"the driver sent a piece of {message.name} that does not follow those before it")
        whole.view(-1)[filled : filled + piece.numel()] = piece
        if filled + piece.numel() < elements:
            self._filled[place] = filled + piece.numel()

    def _get(self, message: m.StateTensor) -> Tensor | None:
        if message.part == "weight":
            return self.weights.get(message.name)
        return self.optimizer.get((message.name, message.key))

    def _set(self, message: m.StateTensor, tensor: Tensor) -> None:
        if message.part == "weight":
            self.weights[message.name] = tensor
        else:
            self.optimizer[message.name, message.key] = tensor


@dataclass(frozen=True)
class HeldStage:
    """What a stage consists of once it holds its weights. It has made `version` updates."""

    compute: StageCompute
    rounds: StageRounds
    version: int


class Build(Protocol):
    """Makes the parts of a stage from its state."""

    def __call__(
        self, state: Mapping[str, Tensor], optimizer: Mapping[tuple[str, str], Tensor], version: int, rings: RoundRings
    ) -> HeldStage:
        """Return the stage; `rings` are those that it takes part in already."""
        ...


class JoiningStage:
    """One stage of a cluster that joins. It has the interface of a StageRuntime, and becomes one."""

    def __init__(
        self,
        setup: StageSetup,
        endpoint: Endpoint,
        build: Build,
        train: Callable[[HeldStage, int, int, int], StageRuntime],  # merged, contributed, term
        started: Callable[[], m.StageStarted],
        now: Callable[[], float] = time.monotonic,
        kept: KeptState | None = None,
    ) -> None:
        """
        Arguments:
            build: makes the parts of the stage when its state is here.
            train: makes the stage that trains, from these parts, the last round that it has merged, the last that it
                has contributed to, and the term of the driver that it hears.
            started: makes what the driver is told once the stage holds the anchor.
            now: the clock, in seconds.
            kept: what the stage has of its anchor already.
        """
        self.setup = setup
        self.endpoint = endpoint
        self._build = build
        self._train = train
        self._started = started
        self._now = now
        endpoint.epoch = setup.transport.epoch
        self._rings = StageRings(setup, endpoint, joins=True)
        self._follower = RoundFollower(setup, self._rings)
        self._state = ArrivingState()
        """What the driver sends of a checkpoint."""
        self._taking = SegmentTaking(setup)
        """What donors send."""
        self._own: Mapping[tuple[str, str], Tensor] = {}
        """The optimizer's state, where this stage has kept it."""
        self._first: Sequence[Delivery] = ()
        self.term = 0 if kept is None else kept.term
        """That of the driver which the stage heard last. What an earlier one says has no effect."""
        if kept is not None:
            self._taking.taken.update(kept.segments)
            self._own, self._first = kept.optimizer, kept.left
        self._gifts = Outbox(endpoint)
        """What this stage gives to others, once it holds the anchor itself."""
        self._held: HeldStage | None = None
        self._train_from: em.TrainFrom | None = None
        self._early: list[Delivery] = []
        self._stopped = False
        self.stands_by: em.StandBy | None = None
        """The order by which it has stopped before it trained, but is to join again; None otherwise."""
        self.left: list[Delivery] = []
        """What has arrived after that order."""
        self._awake = AwakeTime(STOOD_STILL_S, ALIVE_EVERY_S)
        self._driver = orphan_deadline(self._awake.at(now()))
        self._next_alive_s = now()
        self.runtime: StageRuntime | None = None
        """The stage that trains; None until it does."""

    @property
    def stopped(self) -> bool:
        """Whether the stage has been told to leave."""
        return self._stopped if self.runtime is None else self.runtime.stopped

    @property
    def compute(self) -> StageCompute | None:
        """What computes, once the stage holds the anchor."""
        return None if self._held is None else self._held.compute

    @property
    def rounds(self) -> StageRounds | None:
        """The averaging of the stage, once it holds the anchor."""
        return None if self._held is None else self._held.rounds

    def turn(self, timeout_s: float = _POLL_S) -> None:
        """One pass of the loop, which waits for at most `timeout_s`. Raises what a StageRuntime raises."""
        if self.runtime is not None:
            self.runtime.turn(timeout_s)
            return
        first, self._first = self._first, ()
        for delivery in (*first, *self.endpoint.poll(0.0 if first else timeout_s)):
            if self.stands_by is not None:
                self.left.append(delivery)
                continue
            try:
                self._take(delivery)
            except InvalidInput as error:
                raise RunFailed(f"{type(delivery.message).__name__} of {delivery.sender}: {error}") from error
        if self._stopped:
            return
        self._follower.merge(self._rings.pump())
        self._send(self._taking.late(self._awake.at(self._now())))
        self._hold()
        self._give()
        self._say_alive()
        if self._train_from is not None and self._held is not None:
            self._begin_training(self._train_from, self._held)

    def _take(self, delivery: Delivery) -> None:
        message = delivery.message
        if self._rings.on_delivery(delivery):
            return
        if isinstance(message, Unacceptable):
            failed = self._taking.fails(delivery.sender, f"it sent what no stage sends: {message.reason}")
            if not failed:
                raise RunFailed(f"{delivery.sender} sent what none of its kind sends: {message.reason}")
            self._send(failed)
            return
        if delivery.sender != m.DRIVER:
            self._take_of_stage(delivery)
            return
        if delivery.epoch < self.term:
            return  # of a driver whose run was taken over
        self.term = delivery.epoch
        self._driver.heard(self._awake.at(self._now()))
        if self._held is None and self._state.take(delivery):
            self._next_alive_s = self._now()  # the driver sends no more before it knows what has come
            return
        match message:
            case em.RingsReformedMessage():
                self._follower.merge(self._rings.on_reformed(message))
                self._forget(message.lost)
            case em.RoundsResumedMessage():
                fresh = self._rings.first_round is None
                self._follower.merge(self._rings.on_resumed(message))
                outdated = [] if self._held is not None else self._taking.outdated(message.first_round)
                self._send([] if fresh else outdated)  # a fresh one is told of donors anyway
            case dm.TakeSegments() if self._held is None:
                from_round = (self._rings.first_round or 1) - 1
                self._send(self._taking.ask(message.sources, from_round, self._awake.at(self._now())))
            case dm.TakeSegments():
                pass
            case m.RoundCommittedMessage():
                self._follower.merge(self._rings.on_committed(message))
            case em.FollowRounds():
                self._follower.follow(message.up_to)
            case em.TrainFrom():
                self._train_from = message
                self._follower.follow(message.round)
            case m.Alive():
                pass
            case em.StandBy():
                self.stands_by = message
                self._stopped = True
            case m.Stop() | em.TakeOver():  # it has nothing yet that another driver could go on from
                self._stopped = True
            case _:
                self._keep(delivery)

    def _take_of_stage(self, delivery: Delivery) -> None:
        """Take what another stage has sent: pieces of a segment, requests for one, or what only a trainer takes."""
        answers = self._taking.take(delivery, self._follower.newest, self._awake.at(self._now()))
        if answers is not None:
            self._send(answers)
        elif self._held is not None and self._held.rounds.giving.take(delivery):
            pass
        elif not isinstance(delivery.message, dm.SegmentAsked | dm.SegmentRoom):
            self._keep(delivery)

    def _keep(self, delivery: Delivery) -> None:
        if len(self._early) == MOST_EARLY:
            raise RunFailed(f"{delivery.sender} sends more than a stage takes that does not train yet")
        self._early.append(delivery)

    def _send(self, messages: list[Send]) -> None:
        for peer, message in messages:
            self.endpoint.send(peer, Lane.PIPELINE, message)

    def _forget(self, lost: tuple[str, ...]) -> None:
        """These stages are lost: nothing comes of them, and nothing goes to them."""
        for peer in lost:
            self._send(self._taking.fails(peer, "it is lost"))
            self._gifts.forget(peer)
        if self._held is not None:
            self._held.rounds.giving.forget(lost)

    def _give(self) -> None:
        """Send what others have asked for, as far as they have room."""
        for peer, message, tensors in () if self._held is None else self._held.rounds.giving.pieces():
            self._gifts.put(peer, message, tensors)
        self._gifts.flush()

    def _hold(self) -> None:
        """Make the stage's parts, once its state is whole, and bring its anchor up to date."""
        begin, taking = self._state.whole, self._taking
        if self._held is not None or self._rings.first_round is None or not (begin is not None or taking.whole):
            return
        if begin is not None:
            weights, optimizer = self._state.weights, self._state.optimizer
            anchor_of = dict.fromkeys(self._rings.segments, begin.round)
        else:
            weights, optimizer = taking.weights, {**self._own, **taking.outer}
            anchor_of = {ring: each.round for ring, each in taking.taken.items()}
        if max(anchor_of.values(), default=0) > self._follower.reached:
            return  # the commit of that round is still on its way here
        held = self._build(weights, optimizer, 0 if begin is None else begin.version, self._rings)
        self._follower.adopt(held.rounds, anchor_of)
        self._held = held
        self._state.forget()
        taking.taken.clear()
        self._own = {}
        self.endpoint.send(m.DRIVER, Lane.PIPELINE, self._started())

    def _begin_training(self, order: em.TrainFrom, held: HeldStage) -> None:
        """Train, once this stage has taken part in all rounds up to that of the order."""
        contributed = self._follower.contributed
        if contributed < order.round:
            return
        held.compute.begin_at(order.version)
        held.compute.weights_moved()
        self.runtime = self._train(replace(held, version=order.version), self._follower.merged, contributed, self.term)
        early, self._early = self._early, []
        self.runtime.begin_with(early)

    def _say_alive(self) -> None:
        now_s = self._now()
        awake_s = self._awake.at(now_s)
        if now_s >= self._next_alive_s:
            self._next_alive_s = now_s + ALIVE_EVERY_S
            # While the state arrives, this is what the driver goes by to send more of it.
            finished = self._state.pieces or self._taking.pieces + self._follower.merged
            self.endpoint.send(m.DRIVER, Lane.PIPELINE, m.Alive(finished=finished))
        if self._driver.expired(awake_s):
            raise NodeLost(f"the driver has been silent for {self._driver.silent_s(awake_s):.0f} s")
