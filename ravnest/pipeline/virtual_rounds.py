"""Rounds in a virtual run: the driver that opens, commits and ends them, and each stage's part of each ring.

Decides nothing itself: `RoundOwner`, `RoundMember` and `Ring` of ring_allreduce do. This passes on what they
say. Vectors are lengths.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import ring_allreduce as rounds
from ravnest.errors import RunFailed
from ravnest.pipeline import events as ev
from ravnest.pipeline.virtual_fleet import PARAMETER_BYTES, VirtualFleet
from ring_allreduce import ring_events
from ring_allreduce.ring import Ring
from ring_allreduce.transport.stats import Lane


class Clock(Protocol):
    """What rounds need of the virtual clock."""

    @property
    def now_s(self) -> float: ...
    def after(self, delay_s: float, action: Callable[[], None]) -> None: ...
    def tell(self, who: str, event: ev.Event) -> None: ...
    def transmit(
        self, source: str, target: str, lane: Lane, n_bytes: int, word: str, action: Callable[[], None]
    ) -> None: ...


class VirtualRounds:
    def __init__(self, fleet: VirtualFleet, clock: Clock) -> None:
        self._fleet = fleet
        self._clock = clock
        self._stages = {cluster.name: cluster.stage_names() for cluster in fleet.clusters}
        self._rings = {f"ring{index}": ring for index, ring in enumerate(fleet.rings)}
        members = {name: ring.members for name, ring in self._rings.items()}
        self._owner = rounds.RoundOwner(members, fleet.average_every, max_lag=fleet.max_lag)
        self._members = {
            who: rounds.RoundMember([name for name, ring in self._rings.items() if who in ring.members])
            for names in self._stages.values()
            for who in names
        }
        self._machines: dict[tuple[str, int, str], Ring] = {}
        self._contributed_samples = dict.fromkeys(self._members, 0)
        self._drained_updates: dict[str, int] = {}

    # At the driver.

    @property
    def opened(self) -> int:
        """The last round that was opened."""
        return self._owner.opened

    def trained(self, cluster: str, samples: int) -> None:
        """A cluster has trained on `samples` in all."""
        if self._rings:
            self._own(rounds.SamplesReported(cluster, samples))

    def drained(self, cluster: str, updates: int) -> None:
        self._drained_updates[cluster] = updates
        self._finish_rounds(cluster)
        if self._rings and len(self._drained_updates) == len(self._stages):
            self._own(rounds.FinishRequested())

    def _own(self, event: rounds.OwnerEvent) -> None:
        for instruction in self._owner.handle(event, self._clock.now_s):
            match instruction:
                case rounds.OpenRound(number):
                    for cluster, names in self._stages.items():
                        # A drained cluster sends no more gradients to stamp: it contributes what it has.
                        if cluster in self._drained_updates:
                            self._finish_rounds(cluster)
                        else:
                            self._control(names[-1], ev.RoundOpened(number))
                case rounds.CommitRound(number):
                    for who in self._members:
                        committed = partial(self._at_member, who, rounds.RoundCommitted(number))
                        self._clock.after(self._fleet.control_latency_s, committed)
                case rounds.FailRun(reason):
                    raise RunFailed(reason)

    def _finish_rounds(self, cluster: str) -> None:
        for who in self._stages[cluster]:
            self._control(who, ev.RoundsToFinish(self._owner.opened, self._drained_updates[cluster]))

    def _control(self, who: str, event: ev.Event) -> None:
        self._clock.after(self._fleet.control_latency_s, partial(self._clock.tell, who, event))

    # At a stage.

    def contribute(self, who: str, number: int, samples: int) -> None:
        """A stage has taken its snapshot for a round, having trained on `samples` in all."""
        weight = samples - self._contributed_samples[who]
        self._contributed_samples[who] = samples
        for name, ring in self._rings.items():
            if who in ring.members:
                self._in_ring(who, number, name, ring_events.ContributionReady(float(weight)))

    def _in_ring(self, who: str, number: int, name: str, event: ring_events.RingEvent) -> None:
        ring = self._rings[name]
        key = (who, number, name)
        machine = self._machines.get(key)
        if machine is None:
            machine = Ring(ring.members, who, ring.elements, ring.chunk_elements, number, epoch=0)
            self._machines[key] = machine
        for instruction in machine.handle(event, self._clock.now_s):
            match instruction:
                case ring_events.SendChunk(to, phase, block, start, stop, weight, counters):
                    arrived = ring_events.ChunkArrived(who, 0, number, phase, block, start, stop, weight, counters)
                    n_bytes = (stop - start) * PARAMETER_BYTES
                    word = f"chunk:{name}@r{number}:{phase}:{start}-{stop}"
                    deliver = partial(self._in_ring, to, number, name, arrived)
                    self._clock.transmit(who, to, Lane.BULK, n_bytes, word, deliver)
                case ring_events.FinishRing():
                    self._at_member(who, rounds.RingFinished(name, number))
                    finished = rounds.MemberFinished(number, who, name)
                    self._clock.after(self._fleet.control_latency_s, partial(self._own, finished))
                case ring_events.DropChunk(sender, reason) | ring_events.RefuseChunk(sender, reason):
                    raise RunFailed(f"{who} refuses a chunk of {sender} in {name}, round {number}: {reason}")
                case _:
                    pass  # arithmetic, which takes no time here

    def _at_member(self, who: str, event: rounds.RingFinished | rounds.RoundCommitted) -> None:
        for merge in self._members[who].handle(event, self._clock.now_s):
            for name in self._rings:
                self._machines.pop((who, merge.round, name), None)
            self._clock.tell(who, ev.MergeArrived(merge.round))
