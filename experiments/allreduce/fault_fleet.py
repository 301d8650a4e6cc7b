"""A fleet of clusters in memory: clusters of several members, several rings, rounds in flight, links of their own.

The machines and reducers are those of a run; the network is in memory and the clock virtual, so that everything follows
from the seed. What happens to a fleet, and whether it came out right, is fault_virtual.py's.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ring_allreduce import ContributionRefused, RingReducer, RingSpec
from ring_allreduce.ring import RING_KINDS
from ring_allreduce.rounds import EpochMember, RoundMembership
from ring_allreduce.rounds import events as ev
from ring_allreduce.transport import Codec, InProcessNetwork, Lane, LinkShape

CONTROL_S = 0.01
NOTICED_AFTER_S = 2.0
"""A death is seen by its closed connection; silence, and links that carry nothing, by deadlines of about this."""

MOST_EVENTS = 100_000
MOST_CLUSTERS, MOST_RINGS = 5, 3


class VirtualMember:
    """One stage: its machine, its reducer, and what it merged."""

    def __init__(self, fleet: VirtualFleet, name: str, cluster: str, rings: Sequence[str]) -> None:
        self.name, self.cluster, self.rings = name, cluster, tuple(rings)
        self._fleet = fleet
        self.endpoint = fleet.network.endpoint(name, Codec(RING_KINDS))
        self.machine = EpochMember(name)
        self.reducer: RingReducer | None = None
        self.merged: dict[int, dict[str, tuple[float, bytes]]] = {}
        self._contributed = 0
        self._members_of: Mapping[str, tuple[str, ...]] = {}
        self._averages: dict[tuple[str, int], tuple[float, NDArray[np.float32]]] = {}
        self.frozen = False
        self.left_out = False

    def turn(self) -> None:
        """Take what came, tell what became whole, contribute where it may."""
        if self.frozen or self.left_out or self.reducer is None:
            return
        for delivery in self.endpoint.poll(0.0):
            try:
                self.reducer.on_delivery(delivery)
            except ContributionRefused as error:
                suspicion = ev.MemberSuspected(self.machine.epoch, error.member, error.reason, refused=True)
                self._fleet.tell(suspicion)
        self.reducer.pump()
        self._collect()
        first = self.machine.next_round
        if first is None:
            return
        for number in range(max(first, self._contributed + 1), min(first + self._fleet.window, self._fleet.rounds + 1)):
            self._contributed = number
            for ring in self.rings:
                vector = torch.from_numpy(self._fleet.contribution(self.cluster, ring, number))
                self.reducer.contribute(number, ring, vector, self._fleet.weights[self.cluster])
            self._follow(self.machine.handle(ev.RoundContributed(number)))
            self._collect()

    def take(self, order: ev.MembershipInstruction) -> None:
        """An order of the owner arrives."""
        if isinstance(order, ev.LeaveOut):
            self.left_out = True
        elif isinstance(order, ev.Reform | ev.Resume | ev.CommitRound):
            self._collect()
            self._follow(self.machine.handle(order))
            if isinstance(order, ev.Resume) and order.epoch == self.machine.epoch and not self._contributed:
                self._contributed = order.first_rounds[self.name] - 1
                self._begin(self._contributed + 1)

    def _begin(self, first_round: int) -> None:
        specs = [self._fleet.spec(ring, self._members_of[ring]) for ring in self.rings]
        self.reducer = RingReducer(self.endpoint, specs, max_rounds=self._fleet.window, first_round=first_round)

    def _collect(self) -> None:
        for result in self.reducer.finished() if self.reducer else ():
            self._averages[result.ring, result.round] = result.total_weight, result.average.numpy()
            self._follow(self.machine.handle(ev.RingFinished(result.ring, result.round)))

    def _follow(self, orders: Sequence[ev.EpochInstruction]) -> None:
        reducer = self.reducer
        for order in orders:
            match order:
                case ev.ReportFinished(ring, number, epoch):
                    self._fleet.tell(ev.MemberFinished(number, self.name, ring, epoch))
                case ev.ReportHeld(epoch, holding):
                    self._fleet.tell(ev.MemberHeld(epoch, self.name, holding))
                case ev.ReformRings(epoch, rings):
                    self.endpoint.epoch = epoch
                    self._members_of = rings
                    members = {name for names in rings.values() for name in names}
                    self.endpoint.connect(dict.fromkeys(members, self.endpoint.address))
                    if reducer is not None:
                        reducer.reform([self._fleet.spec(ring, rings[ring]) for ring in self.rings])
                case ev.MergeRound(number):
                    taken = {ring: self._averages.pop((ring, number)) for ring in self.rings}
                    self.merged[number] = {ring: (total, mean.tobytes()) for ring, (total, mean) in taken.items()}
                    assert reducer is not None
                    reducer.commit(number)
                case ev.RestartRound(number):
                    assert reducer is not None
                    reducer.restart(number)
                case ev.SendAverage(ring, number, to):
                    assert reducer is not None
                    reducer.hand_on(number, ring, to)
                case ev.AcceptAverage(ring, number, holder):
                    assert reducer is not None
                    reducer.accept(number, ring, holder)


class VirtualFleet:
    """The owner, the members, and the clock. Everything follows from the seed."""

    def __init__(self, seed: int, least_clusters: int = 2) -> None:
        chance = self.chance = random.Random(seed)
        self.seed = seed
        self.now_s = 0.0
        self.window = chance.randint(1, 3)
        self.rounds = chance.randint(1, 5)
        self.segments = [f"r{index}" for index in range(chance.randint(1, MOST_RINGS))]
        # One of them may be empty, not all: a fault of numbers needs some.
        self.elements = {ring: chance.randint(int(ring == "r0"), 120) for ring in self.segments}
        self.chunk = chance.randint(10, 60)
        self.network = InProcessNetwork(now=lambda: self.now_s, links=_links(chance))
        self.members: dict[str, VirtualMember] = {}
        self.weights: dict[str, float] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.steps = 0
        self.struck = False
        """Whether a fault of messages has found one."""
        shapes = [self._shape(f"c{index}") for index in range(chance.randint(least_clusters, MOST_CLUSTERS - 1))]
        rings = {
            ring: [name for shape in shapes for name, held in shape.items() if ring in held] for ring in self.segments
        }
        for index, shape in enumerate(shapes):
            self._add(f"c{index}", shape)
        clusters = {name: member.cluster for name, member in self.members.items()}
        self.owner = RoundMembership(rings, ahead=self.window, clusters=clusters)
        self._give(self.owner.begin())

    @property
    def alive(self) -> list[VirtualMember]:
        return [self.members[name] for name in self.owner.members if name in self.members]

    @property
    def over(self) -> bool:
        return self.owner.failed or all(member.machine.committed == self.rounds for member in self.alive)

    def spec(self, ring: str, members: Sequence[str]) -> RingSpec:
        """The ring among `members`."""
        return RingSpec(ring, tuple(members), self.elements[ring], self.chunk)

    def contribution(self, cluster: str, ring: str, number: int) -> NDArray[np.float32]:
        seed = [self.seed, int(cluster[1:]), int(ring[1:]), number]
        return np.random.default_rng(seed).standard_normal(self.elements[ring], dtype=np.float32)

    def join(self) -> None:
        """A cluster comes, with cuts of its own."""
        name = f"c{len(self.weights)}"
        shape = self._shape(name)
        self._add(name, shape)
        self._give(self.owner.handle(ev.ClusterJoined(name, shape)))

    def kill(self, cluster: str) -> None:
        """Its members end, all at once; the owner sees one of them go."""
        lost = [member for member in self.members.values() if member.cluster == cluster]
        for member in lost:
            member.endpoint.close()
            member.left_out = True
        self._later(CONTROL_S, lambda: self._give(self.owner.handle(ev.MemberLost(lost[0].name, "killed"))))

    def freeze(self, cluster: str) -> None:
        """Nothing of it moves; it is noticed, and later it comes back."""
        frozen = [member for member in self.members.values() if member.cluster == cluster]

        def thaw() -> None:
            for member in frozen:
                member.frozen = False

        for member in frozen:
            member.frozen = True
        lost = ev.MemberLost(frozen[0].name, "silent")
        self._later(NOTICED_AFTER_S, lambda: self._give(self.owner.handle(lost)))
        self._later(NOTICED_AFTER_S + self.chance.uniform(0.0, 1.0), thaw)

    def cut(self) -> None:
        """What is on the way to one member is gone; as soon as there is anything on the way to anybody."""
        while not (busy := [member.name for member in self.alive if self._senders_to(member.name)]):
            if not self.step():
                return
        name = self.chance.choice(busy)
        for node in self._senders_to(name):
            node.forget(name)
        self.struck = True

    def _senders_to(self, name: str) -> list[Any]:
        nodes = [sender.endpoint._node for sender in self.members.values()]
        return [node for node in nodes if any(node.queued(name, lane) for lane in Lane)]

    def poison(self) -> None:
        """The next chunk of anybody that holds numbers is not finite."""
        sends = {member.name: member.endpoint.send for member in self.alive}

        def poisoned(name: str, peer: str, lane: Any, message: Any, tensors: Sequence[torch.Tensor] = ()) -> None:
            if not self.struck and any(tensor.numel() for tensor in tensors):
                self.struck = True
                tensors = [torch.full_like(tensor, torch.nan) for tensor in tensors]
            sends[name](peer, lane, message, tensors)

        for member in self.alive:
            member.endpoint.send = partial(poisoned, member.name)  # type: ignore[method-assign]

    def tell(self, event: ev.MembershipEvent) -> None:
        """To the owner."""
        self._later(CONTROL_S, lambda: self._give(self.owner.handle(event)))

    def step(self) -> bool:
        """The next thing that happens; False when nothing will."""
        due = [
            time_s
            for time_s in (self.network.next_due_s(), self._events[0][0] if self._events else None)
            if time_s is not None
        ]
        if not due:
            return False
        self.steps += 1
        self.now_s = max(self.now_s, min(due))
        while self._events and self._events[0][0] <= self.now_s:
            heapq.heappop(self._events)[2]()
        for member in list(self.members.values()):
            member.turn()
        return True

    def run(self) -> bool:
        """To the end; False when it does not come."""
        while self.steps < MOST_EVENTS:
            if not self.step():
                if self.over:
                    return True
                self._suspect()
        return False

    def _suspect(self) -> None:
        """Nothing moves any more: whose chunks were sent, and never came?"""
        self.now_s += NOTICED_AFTER_S
        for member in self.alive:
            for key, at in (member.reducer.progress() if member.reducer else {}).items():
                sender = self.members.get(at.waits_for or "")
                sent = sender.reducer.progress().get(key) if sender and sender.reducer else None
                if sender and (sent is None or sent.sent > at.received):
                    self._give(self.owner.handle(ev.MemberSuspected(self.owner.epoch, sender.name, "nothing came")))
                    return
        self.steps = MOST_EVENTS

    def _shape(self, cluster: str) -> dict[str, tuple[str, ...]]:
        """The cluster's stages: consecutive segments, cut anywhere."""
        stages = self.chance.randint(1, len(self.segments))
        cuts = [0, *sorted(self.chance.sample(range(1, len(self.segments)), stages - 1)), len(self.segments)]
        return {f"{cluster}.s{i}": tuple(self.segments[cuts[i] : cuts[i + 1]]) for i in range(stages)}

    def _add(self, cluster: str, shape: Mapping[str, tuple[str, ...]]) -> None:
        self.weights[cluster] = 2.0 ** len(self.weights)
        for name, rings in shape.items():
            self.members[name] = VirtualMember(self, name, cluster, rings)

    def _give(self, orders: Sequence[ev.MembershipInstruction]) -> None:
        for order in orders:
            names = [order.member] if isinstance(order, ev.LeaveOut) else self.owner.members
            for name in names:
                self._order(self.members[name], order)

    def _order(self, member: VirtualMember, order: ev.MembershipInstruction) -> None:
        """It arrives some time later, after those before it; at a frozen member when that comes back."""
        if member.frozen:
            self._later(CONTROL_S, lambda: self._order(member, order))
        elif not member.left_out:
            self._later(CONTROL_S, lambda: self._order(member, order) if member.frozen else member.take(order))

    def _later(self, delay_s: float, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now_s + delay_s, self._count, action))


def _links(chance: random.Random) -> dict[tuple[str, str], LinkShape]:
    """A link of its own for every pair there may be."""
    names = [f"c{cluster}.s{stage}" for cluster in range(MOST_CLUSTERS) for stage in range(MOST_RINGS)]
    return {
        (one, other): LinkShape(10 ** chance.uniform(3.5, 5.5), chance.uniform(0.0, 0.05), 0.01)
        for one in names
        for other in names
        if one != other
    }
