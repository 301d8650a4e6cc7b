"""One stage's part in the rounds of a simulated run, and in each of its rings.

`EpochMember` and the ring machines of ring_allreduce decide, as in a real run; of a vector this module knows only the
length. A stage that joins a run under way follows the rounds without weight until it holds the anchor (decision 70).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ravnest.errors import RunFailed
from ravnest.pipeline import events as ev
from ravnest.recovery import Way
from ravnest.simulator.clock import Action
from ravnest.simulator.fleet import VirtualRing
from ravnest.simulator.network import Path
from ravnest.simulator.stage import RunningStage, SimulatedWorld
from ring_allreduce import rounds
from ring_allreduce.ring import (
    ChunkArrived,
    ContributionReady,
    DirectMachine,
    DropChunk,
    FinishRing,
    GroupMachine,
    RefuseChunk,
    RingEvent,
    RingMachine,
    SendChunk,
)
from ring_allreduce.transport import Lane

_LOOK_EVERY_S = 0.25
"""How often a stage that leaves looks whether it rests: a real one turns as often."""
_NUMBER_BYTES = 4
"""Progress that is handed on travels exactly."""


class RoundsDriver(Protocol):
    """What a member needs of the driver."""

    def control(self, action: Action, argument: Any) -> None:
        """Call `action` after the time that a message between the driver and a stage takes."""
        ...

    def own(self, event: rounds.OwnerEvent) -> None:
        """Give the owner of the rounds an event."""
        ...

    def ring(self, name: str, epoch: int) -> VirtualRing:
        """Return a ring as it is in an epoch."""
        ...

    def holds(self, who: str) -> None:
        """A stage that joins holds the anchor."""
        ...

    def progress_came(self, came: tuple[Way, int]) -> None:
        """What a stage has made, in so many updates, is with another one."""
        ...


class RoundsMember:
    """One stage's part of the rounds."""

    __slots__ = (
        "awaits",
        "contributed",
        "follows_to",
        "given",
        "machine",
        "max_lag",
        "merged",
        "parts",
        "rounds",
        "stage",
        "train_from",
    )

    def __init__(self, stage: RunningStage, around: RoundsDriver, max_lag: int, *, joins: bool = False) -> None:
        """`joins`: the stage is to join a run under way."""
        self.stage = stage
        self.rounds = around
        self.max_lag = max_lag
        self.machine = rounds.EpochMember(stage.who, paused=joins)
        self.follows_to = 0 if joins else None
        """The last open round that a stage follows which does not train yet; None for one that trains."""
        self.awaits: set[str] = set()
        """The rings whose pieces of the anchor are on their way."""
        self.merged = 0
        self.train_from: tuple[int, int] | None = None
        """(the last round to follow, updates that its cluster has made), once it is to train."""
        self.parts: dict[str, RingPart] = {}
        """By ring."""
        self.contributed = 0
        """Samples."""
        self.given: dict[int, float] = {}
        """By round that is not merged: the weight of this stage's contribution."""

    def contribute(self, number: int, samples: int) -> None:
        self.given[number] = float(samples - self.contributed)
        self.contributed = samples
        self.machine.handle(rounds.RoundContributed(number))
        if not self.machine.paused:  # else the round starts when the epoch does
            self._begin(number)

    def _begin(self, number: int) -> None:
        for part in self.parts.values():
            part.handle(number, ContributionReady(self.given[number]))

    def hear(self, event: rounds.RingFinished | rounds.CommitRound | rounds.Reform | rounds.Resume) -> None:
        if not self.stage.receive(self.hear, event):
            return
        who, parts = self.stage.who, self.parts
        for order in self.machine.handle(event):
            match order:
                case rounds.ReportFinished():
                    told = rounds.MemberFinished(order.round, who, order.ring, order.epoch)
                    self.rounds.control(self.rounds.own, told)
                case rounds.MergeRound(number):
                    del self.given[number]
                    self.merged = number
                    for part in parts.values():
                        part.machines.pop(number, None)
                    if self.follows_to is None:
                        self.stage.tell(ev.MergeArrived(number))
                case rounds.ReformRings(epoch):
                    for name, part in parts.items():
                        part.reform(self.rounds.ring(name, epoch))
                case rounds.ReportHeld(epoch, holding):
                    self.rounds.control(self.rounds.own, rounds.MemberHeld(epoch, who, holding))
                case rounds.RestartRound(number):
                    for part in parts.values():
                        part.machines.pop(number, None)
                    self._begin(number)
                case rounds.SendAverage(ring, number, to):
                    parts[ring].hand_on(number, to)
        if self.follows_to is not None:
            self._follow()

    # A stage that joins.

    def follow(self, up_to: int) -> None:
        """The rounds up to `up_to` are open: take part in each without weight, as soon as the lag permits."""
        if self.stage.receive(self.follow, up_to) and self.follows_to is not None:
            self.follows_to = max(self.follows_to, up_to)
            self._follow()

    def state_came(self, ring: str) -> None:
        """The piece of the anchor that is of a ring is here."""
        if self.stage.receive(self.state_came, ring) and ring in self.awaits:
            self.awaits.discard(ring)
            if not self.awaits:
                self.rounds.control(self.rounds.holds, self.stage.who)

    def train(self, told: tuple[int, int]) -> None:
        """Train, once it has followed all rounds up to the first number of `told`, from the update in the second."""
        if self.stage.receive(self.train, told):
            self.train_from = told
            self.follow(told[0])

    def _follow(self) -> None:
        machine, last = self.machine, self.follows_to or 0
        for number in range(max(machine.first_round, machine.committed + 1), last + 1):
            if not machine.paused and number not in self.given and number - self.max_lag <= machine.committed:
                self.contribute(number, self.contributed)
        if self.train_from is None:
            return
        followed = max([self.merged, machine.first_round - 1, *self.given])
        if followed >= self.train_from[0]:
            self.follows_to = None
            merged = max(self.merged, machine.committed)
            self.stage.begin(ev.Started(self.train_from[1], merged, max(followed, merged)))


class RingPart:
    """One stage's part of one ring."""

    __slots__ = ("clock", "machines", "member", "name", "network", "others", "paths", "ring", "trace", "who")

    def __init__(self, name: str, ring: VirtualRing, member: RoundsMember, world: SimulatedWorld) -> None:
        self.name = name
        self.ring = ring
        self.member = member
        self.who = member.stage.who
        self.clock = world.clock
        self.network = world.network
        self.trace = world.trace
        self.others: dict[str, RingPart] = {}
        self.paths: dict[str, Path] = {}
        self.machines: dict[int, RingMachine | GroupMachine | DirectMachine] = {}

    def came(self, chunk: ChunkArrived) -> None:
        if self.member.stage.receive(self.came, chunk) and chunk.epoch == self.member.machine.epoch:
            self.handle(chunk.round, chunk)

    def reform(self, ring: VirtualRing) -> None:
        """Give up what is under way; the ring has other members from now on."""
        self.ring = ring
        self.machines.clear()

    def hand_on(self, number: int, to: Sequence[str]) -> None:
        """Send a whole average to members that lack it."""
        for who in to:
            n_bytes = int(self.ring.elements * self.ring.element_bytes)
            self._path(who).transmit(
                Lane.BULK, n_bytes, self.others[who].member.hear, rounds.RingFinished(self.name, number)
            )

    def hand_on_progress(self, way: Way) -> None:
        """Send a member what this stage has given to rounds that are not merged, and what it has made since, as soon
        as it rests."""
        stage = self.member.stage
        if stage.dead or not stage.receive(self.hand_on_progress, way):
            return
        updates = stage.machine.rests_at
        if updates is None:
            self.clock.after(_LOOK_EVERY_S, self.hand_on_progress, way)
            return
        parts = 1 + len(self.member.given)
        n_bytes = parts * self.ring.elements * _NUMBER_BYTES
        self._path(way.taker).transmit(Lane.BULK, n_bytes, self.member.rounds.progress_came, (way, updates))

    def send_state(self, who: str) -> None:
        """Send a member that joins the anchor and the state of the optimizers."""
        if self.member.stage.receive(self.send_state, who):
            n_bytes = int(self.ring.elements * self.ring.state_bytes)
            self._path(who).transmit(Lane.BULK, n_bytes, self.others[who].member.state_came, self.name)

    def handle(self, number: int, event: RingEvent) -> None:
        machine = self.machines.get(number)
        if machine is None:
            machine = self.machines[number] = self._machine(number)
        for instruction in machine.handle(event, self.clock.now_s):
            kind = type(instruction)
            if kind is SendChunk:
                self._send(number, instruction)  # type: ignore[arg-type] # it is one
            elif kind is FinishRing:
                self.member.hear(rounds.RingFinished(self.name, number))
            elif isinstance(instruction, DropChunk | RefuseChunk):
                what = f"a chunk of {instruction.sender} in {self.name}, round {number}: {instruction.reason}"
                raise RunFailed(f"{self.who} refuses {what}")
            # The other instructions are arithmetic, which takes no time in a simulation.

    def _machine(self, number: int) -> RingMachine | GroupMachine | DirectMachine:
        ring, epoch = self.ring, self.member.machine.epoch
        given = ring.members, self.who, ring.elements, ring.chunk_elements, number, epoch
        if ring.direct:
            return DirectMachine(*given, each=ring.each)
        if ring.groups is not None:
            return GroupMachine(*given, ring.groups)
        return RingMachine(*given, ring.shares)

    def _send(self, number: int, chunk: SendChunk) -> None:
        start, stop = chunk.start, chunk.stop
        epoch, sums = self.member.machine.epoch, (chunk.weight, chunk.counters)
        arrived = ChunkArrived(self.who, epoch, number, chunk.phase, chunk.block, start, stop, *sums)
        n_bytes = int((stop - start) * self.ring.element_bytes)
        to = chunk.to
        action: Action = self.others[to].came
        if self.trace is not None:
            word = f"chunk:{self.name}@r{number}:{chunk.phase}:{start}-{stop}"
            action, _ = self.trace.sent(self.who, word, action, arrived)
        self._path(to).transmit(Lane.BULK, n_bytes, action, arrived)

    def _path(self, to: str) -> Path:
        path = self.paths.get(to)
        if path is None:
            path = self.paths[to] = self.network.path(self.who, to)
        return path
