"""Flights of a whole group, and a bag of events under way: taken in a random order, some of them twice or spoilt."""

import math
import random
from dataclasses import replace

import torch

from ring_allreduce.ring.events import ChunkArrived, ContributionReady, DropChunk, FinishRing, RefuseChunk, SendChunk
from ring_allreduce.ring.executor import BufferPool, Payload, RingContribution, RingExecutor, RingSpec


class Case:
    """What a group averages: parts, weights and counters by (round, member), from a seed."""

    def __init__(self, members, elements, chunk_elements, seed, *, shares=None, direct=False, groups=None, rounds=1):
        chance = random.Random(seed)
        generator = torch.Generator().manual_seed(seed)
        names = tuple(f"m{i}" for i in range(members))
        self.seed = seed
        self.rounds = range(1, rounds + 1)
        self.spec = RingSpec("r", names, elements, chunk_elements, shares=shares, direct=direct, groups=groups)
        self.parts = {
            (number, name): RingContribution(
                torch.randn(elements, generator=generator) * 10 ** chance.uniform(-3, 3),
                float(chance.choice([0, 1, 8, 500, 4096])),
                (chance.randrange(9), chance.randrange(9)),
            )
            for number in self.rounds
            for name in names
        }

    def check(self, simulation, some=False):
        """All, or `some`, members have finished, with the same bytes, and those are the mean."""
        for number in self.rounds:
            results = simulation.results_of(number)
            assert some or set(results) == set(self.spec.members)
            parts = [self.parts[number, name] for name in self.spec.members]
            for average, total, counters in results.values():
                assert torch.equal(average.view(torch.int32), next(iter(results.values()))[0].view(torch.int32))
                assert total == sum(part.weight for part in parts)
                assert counters == tuple(max(column) for column in zip(*(part.counters for part in parts), strict=True))
                _check_mean(average, parts, total)


def _check_mean(average, parts, total):
    if len(parts) == 1:
        assert torch.equal(average, parts[0].vector)
    elif total == 0:
        assert not average.any()
    else:
        exact = sum(part.weight * part.vector.double() for part in parts) / total
        scale = math.sqrt(sum(part.weight / total * part.vector.double().square().sum() for part in parts))
        assert (average.double() - exact).norm() <= 1e-6 * scale


class Simulation:
    def __init__(self, case, order=None):
        """`order`: another seed for the order of events; None: the case's own."""
        self.case = case
        self.chance = random.Random(case.seed if order is None else order)
        keys = [(number, name) for number in case.rounds for name in case.spec.members]
        self.flights = {
            (number, name): RingExecutor(case.spec, case.spec.machine(name, number, 0), BufferPool())
            for number, name in keys
        }
        self.results = {}
        self.sent_elements = dict.fromkeys(case.spec.members, 0)
        self.refused = []
        self.lost = None
        self.bag = []
        for key in keys:
            part = case.parts[key]
            self.bag.append((key, ContributionReady(part.weight, part.counters), None))

    def results_of(self, number):
        return {name: result for (round_, name), result in self.results.items() if round_ == number}

    def run(self, faults, lose=None):
        """Take all events; the chunk number `lose` that arrives is lost, with its duplicates."""
        arrived = 0
        while self.bag:
            key, event, body = self.bag.pop(self.chance.randrange(len(self.bag)))
            if body is not None:
                arrived += 1
                if arrived - 1 == lose:
                    self.lost = event
                    continue
            if faults and body is not None:
                self.disturb(key, event, body)
            self.take(key, event, body)
        return self

    def disturb(self, key, event, body):
        """The same event twice, or spoilt, before the right one."""
        changes = [{"sender": "x"}, {"epoch": -1}, {"round": 9}, {"start": event.start + 1}, {"weight": math.nan}, {}]
        self.take(key, replace(event, **self.chance.choice(changes)), body)

    def take(self, key, event, body):
        flight = self.flights[key]
        if body is not None:
            flight.arrive(Payload(body.clone(), None))
        instructions = flight.machine.handle(event, 0.0)
        if body is None:
            flight.begin(self.case.parts[key])
        number, name = key
        for instruction in instructions:
            match instruction:
                case SendChunk(to, phase, block, start, stop, weight, counters):
                    self.sent_elements[name] += stop - start
                    arrived = ChunkArrived(name, 0, number, phase, block, start, stop, weight, counters)
                    (sent,) = flight.tensors(instruction)
                    self.bag.append(((number, to), arrived, sent.clone()))
                case FinishRing(total, counters):
                    assert key not in self.results
                    self.results[key] = (flight.room(), total, counters)
                case DropChunk() | RefuseChunk():
                    self.refused.append(instruction)
                case _:
                    flight.compute(instruction)
