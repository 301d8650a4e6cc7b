"""Rounds of a simulated run: the driver that opens, commits and ends them, and each stage's part of each ring.

`RoundOwner`, `RoundMember` and the ring machines of ring_allreduce decide, as in a real run. This module carries their
instructions between the driver and the stages, and chunks between stages. Of a vector it knows only the length.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ravnest.errors import RunFailed
from ravnest.pipeline import events as ev
from ravnest.simulator.clock import Action
from ravnest.simulator.fleet import VirtualFleet, VirtualRing
from ravnest.simulator.network import Path
from ravnest.simulator.stage import RunningStage, SimulatedWorld
from ring_allreduce import rounds
from ring_allreduce.ring import (
    ChunkArrived,
    ContributionReady,
    DirectMachine,
    DropChunk,
    FinishRing,
    RefuseChunk,
    RingEvent,
    RingMachine,
    SendChunk,
)
from ring_allreduce.transport import Lane


class VirtualRounds:
    """All rounds of one simulated run."""

    def __init__(self, fleet: VirtualFleet, stages: Mapping[str, RunningStage], world: SimulatedWorld) -> None:
        """`stages`: by name."""
        self._clock = world.clock
        self._latency_s = fleet.control_latency_s
        self._clusters = {
            cluster.name: tuple(stages[who] for who in cluster.stage_names()) for cluster in fleet.clusters
        }
        rings = {f"ring{index}": ring for index, ring in enumerate(fleet.rings)}
        members = {name: ring.members for name, ring in rings.items()}
        self._owner = rounds.RoundOwner(members, fleet.average_every, max_lag=fleet.max_lag)
        self._has_rings = bool(rings)
        self._members = {who: _Member(stage, self) for who, stage in stages.items()}
        for name, ring in rings.items():
            parts = {who: _Part(name, ring, self._members[who], world) for who in ring.members}
            for who, part in parts.items():
                part.others = parts
                self._members[who].parts.append(part)
        for member in self._members.values():
            member.begin()
        self._drained_updates: dict[str, int] = {}
        self.opened_s: list[float] = []
        """When each round was opened, in order."""
        self.committed_s: list[float] = []
        """When each round was committed, in order."""

    @property
    def opened(self) -> int:
        """The number of the last round that was opened."""
        return self._owner.opened

    # At the driver.

    def trained(self, told: tuple[str, int]) -> None:
        """The driver hears that a cluster has trained on so many samples in all."""
        if self._has_rings:
            self.own(rounds.SamplesReported(*told))

    def drained(self, told: tuple[str, int]) -> None:
        """The driver hears that a cluster has drained, after so many updates."""
        cluster, updates = told
        self._drained_updates[cluster] = updates
        self._finish_rounds(cluster)
        if self._has_rings and len(self._drained_updates) == len(self._clusters):
            self.own(rounds.FinishRequested())

    def own(self, event: rounds.OwnerEvent) -> None:
        """Give the owner of the rounds an event, and carry out what it answers."""
        for instruction in self._owner.handle(event, self._clock.now_s):
            match instruction:
                case rounds.OpenRound(number):
                    self.opened_s.append(self._clock.now_s)
                    for cluster, stages in self._clusters.items():
                        # A drained cluster sends no more gradients to stamp: it contributes what it has.
                        if cluster in self._drained_updates:
                            self._finish_rounds(cluster)
                        else:
                            self.control(stages[-1].tell, ev.RoundOpened(number))
                case rounds.CommitRound(number):
                    self.committed_s.append(self._clock.now_s)
                    for member in self._members.values():
                        self.control(member.hear, rounds.RoundCommitted(number))
                case rounds.FailRun(reason):
                    raise RunFailed(reason)

    def _finish_rounds(self, cluster: str) -> None:
        for stage in self._clusters[cluster]:
            self.control(stage.tell, ev.RoundsToFinish(self._owner.opened, self._drained_updates[cluster]))

    def control(self, action: Action, argument: Any) -> None:
        """Call `action` after the time that a message between the driver and a stage takes."""
        self._clock.after(self._latency_s, action, argument)

    # At the stages.

    def contributed(self, stage: RunningStage, number: int, samples: int) -> None:
        """A stage has taken its snapshot for a round, having trained on `samples` in all."""
        self._members[stage.who].contribute(number, samples)

    def contributed_samples(self, who: str) -> int:
        """Samples behind all that a stage has contributed to rounds."""
        return self._members[who].contributed


class _Member:
    """One stage's part of the rounds."""

    __slots__ = ("contributed", "machine", "parts", "rounds", "stage")

    def __init__(self, stage: RunningStage, around: VirtualRounds) -> None:
        self.stage = stage
        self.rounds = around
        self.parts: list[_Part] = []
        self.contributed = 0
        """Samples."""

    def begin(self) -> None:
        """Make the member's machine, now that all its parts are known."""
        self.machine = rounds.RoundMember([part.name for part in self.parts])

    def contribute(self, number: int, samples: int) -> None:
        weight = samples - self.contributed
        self.contributed = samples
        for part in self.parts:
            part.handle(number, ContributionReady(float(weight)))

    def finished(self, name: str, number: int) -> None:
        self.hear(rounds.RingFinished(name, number))
        self.rounds.control(self.rounds.own, rounds.MemberFinished(number, self.stage.who, name))

    def hear(self, event: rounds.RingFinished | rounds.RoundCommitted) -> None:
        if not self.stage.receive(self.hear, event):
            return
        for merge in self.machine.handle(event, 0.0):
            for part in self.parts:
                part.machines.pop(merge.round, None)
            self.stage.tell(ev.MergeArrived(merge.round))


class _Part:
    """One stage's part of one ring."""

    __slots__ = ("clock", "machines", "member", "name", "network", "others", "paths", "ring", "trace", "who")

    def __init__(self, name: str, ring: VirtualRing, member: _Member, world: SimulatedWorld) -> None:
        self.name = name
        self.ring = ring
        self.member = member
        self.who = member.stage.who
        self.clock = world.clock
        self.network = world.network
        self.trace = world.trace
        self.others: Mapping[str, _Part] = {}
        self.paths: dict[str, Path] = {}
        self.machines: dict[int, RingMachine | DirectMachine] = {}

    def came(self, chunk: ChunkArrived) -> None:
        if self.member.stage.receive(self.came, chunk):
            self.handle(chunk.round, chunk)

    def handle(self, number: int, event: RingEvent) -> None:
        machine = self.machines.get(number)
        if machine is None:
            machine = self.machines[number] = self._machine(number)
        for instruction in machine.handle(event, self.clock.now_s):
            kind = type(instruction)
            if kind is SendChunk:
                self._send(number, instruction)  # type: ignore[arg-type] # it is one
            elif kind is FinishRing:
                self.member.finished(self.name, number)
            elif isinstance(instruction, DropChunk | RefuseChunk):
                what = f"a chunk of {instruction.sender} in {self.name}, round {number}: {instruction.reason}"
                raise RunFailed(f"{self.who} refuses {what}")
            # The other instructions are arithmetic, which takes no time in a simulation.

    def _machine(self, number: int) -> RingMachine | DirectMachine:
        ring = self.ring
        if ring.direct:
            return DirectMachine(ring.members, self.who, ring.elements, ring.chunk_elements, number, 0)
        return RingMachine(ring.members, self.who, ring.elements, ring.chunk_elements, number, 0, ring.shares)

    def _send(self, number: int, chunk: SendChunk) -> None:
        start, stop = chunk.start, chunk.stop
        arrived = ChunkArrived(self.who, 0, number, chunk.phase, chunk.block, start, stop, chunk.weight, chunk.counters)
        n_bytes = int((stop - start) * self.ring.element_bytes)
        to = chunk.to
        path = self.paths.get(to)
        if path is None:
            path = self.paths[to] = self.network.path(self.who, to)
        action: Action = self.others[to].came
        if self.trace is not None:
            word = f"chunk:{self.name}@r{number}:{chunk.phase}:{start}-{stop}"
            action, _ = self.trace.sent(self.who, word, action, arrived)
        path.transmit(Lane.BULK, n_bytes, action, arrived)
