"""One stage of a fleet in memory: the machine and the reducer of a run, turned by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from ring_allreduce import ContributionRefused, RingReducer
from ring_allreduce.group.epoch_member import EpochMember
from ring_allreduce.ring.messages import RING_KINDS
from ring_allreduce.rounds import events as ev
from ring_allreduce.transport import Codec

if TYPE_CHECKING:
    from experiments.allreduce.fault_fleet import VirtualFleet


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
            self._follow(self.machine.handle(ev.Contributed(number)))
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
