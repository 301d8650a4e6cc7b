"""Reducers on one in-process network, driven by hand."""

import torch

from ring_allreduce.ring.executor import RingSpec
from ring_allreduce.ring.messages import RING_KINDS, Chunk
from ring_allreduce.ring.reducer import RingReducer
from ring_allreduce.transport.in_process import InProcessNetwork
from ring_allreduce.transport.message import Codec, Message


class Other(Message, frozen=True, kw_only=True, tag="other"):
    pass


class Fleet:
    """Members on one in-process network, driven by hand."""

    def __init__(self, specs, max_rounds=1, **network):
        self.network = InProcessNetwork(**network)
        names = sorted({name for spec in specs for name in spec.members})
        codec = Codec([*RING_KINDS, Other])
        self.endpoints = {name: self.network.endpoint(name, codec) for name in names}
        self.network.connect_all()
        self.reducers = {
            name: RingReducer(
                endpoint, [spec for spec in specs if name in spec.members], max_rounds=max_rounds, now=self.network.now
            )
            for name, endpoint in self.endpoints.items()
        }
        self.results = {name: {} for name in names}
        self.again = set()
        """(ring, round) that may finish more than once: they started again."""

    def turn(self, name):
        """One poll of one member; whether anything arrived."""
        deliveries = self.endpoints[name].poll(0.0)
        for delivery in deliveries:
            assert self.reducers[name].on_delivery(delivery)
        self.reducers[name].pump()
        for result in self.reducers[name].finished():
            key = result.ring, result.round
            assert key not in self.results[name] or key in self.again
            self.results[name][result.ring, result.round] = result
        return bool(deliveries)

    def settle(self, names=None):
        """Turns of all, or of `names`, until nothing arrives any more."""
        while sum(self.turn(name) for name in names or self.endpoints):
            pass

    def reform(self, specs, epoch):
        """The members of `specs` go on in `epoch`; the others are lost, with what they still had to say."""
        names = {name for spec in specs for name in spec.members}
        for name in set(self.endpoints) - names:
            self.endpoints.pop(name).close()
            del self.reducers[name]
        for name in names:
            self.endpoints[name].epoch = epoch
            self.reducers[name].reform([spec for spec in specs if name in spec.members])


def spec(name="r", members="abc", elements=50, chunk=7, dtype=torch.float32, **options):
    return RingSpec(name, tuple(members), elements, chunk, dtype, **options)


def header(**changes):
    fields = {"ring": "r", "round": 1, "phase": "reduce", "block": 1, "start": 25, "stop": 32, "weight": 1.0}
    return Chunk(**{**fields, **changes})


def part(name, elements=50):
    return torch.full((elements,), float(ord(name) - ord("a") + 1))


def contribute(fleet, names, number=1, ring="r", elements=50):
    for name in names:
        fleet.reducers[name].contribute(number, ring, part(name, elements), 1.0, (ord(name),))
