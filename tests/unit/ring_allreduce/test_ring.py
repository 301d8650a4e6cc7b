"""The ring machine: exact instruction lists for small rings, and its laws under any order of events."""

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ring_allreduce.chunks import Layout
from ring_allreduce.errors import InvalidInput
from ring_allreduce.flight import Flight, RingSpec
from ring_allreduce.ring import Ring
from ring_allreduce.ring_events import (
    AddChunk,
    AddOwn,
    ChunkArrived,
    ContributionReady,
    DivideChunk,
    DropChunk,
    FinishRing,
    RefuseChunk,
    ScaleOwn,
    SendChunk,
    StoreChunk,
    StoreOwn,
)


def ring(members="ab", me="a", elements=4, chunk=2, number=1, epoch=0):
    return Ring(tuple(members), me, elements, chunk, number, epoch)


def chunk(sender="b", phase="reduce", block=1, start=2, stop=4, weight=3.0, counters=(), number=1, epoch=0):
    return ChunkArrived(sender, epoch, number, phase, block, start, stop, weight, counters)


def test_a_lone_member_finishes_at_once():
    machine = ring("a", "a", 5, 2)
    assert machine.handle(ContributionReady(7.0, (1,)), 0.0) == [StoreOwn(), FinishRing(7.0, (1,))]
    assert machine.finished


def test_two_members_step_by_step():
    machine = ring()
    assert machine.handle(ContributionReady(5.0, (2, 9)), 0.0) == [
        ScaleOwn(0, 2),
        SendChunk("b", "reduce", 0, 0, 2, 5.0, (2, 9)),
    ]
    assert machine.waits_for == "b"
    assert machine.handle(chunk(counters=(4, 1)), 0.0) == [
        AddChunk(2, 4),
        DivideChunk(2, 4, 8.0),
        SendChunk("b", "gather", 1, 2, 4, 8.0, (4, 9)),
    ]
    assert machine.handle(chunk("b", "gather", 0, 0, 2, 8.0, (4, 9)), 0.0) == [
        StoreChunk(0, 2),
        FinishRing(8.0, (4, 9)),
    ]
    assert machine.finished
    assert machine.waits_for is None


def test_a_chunk_goes_on_before_the_next_one_has_arrived():
    machine = ring("abc", "a", 12, 2)
    machine.handle(ContributionReady(1.0), 0.0)
    assert machine.handle(chunk("c", "reduce", 2, 8, 10, 1.0), 0.0) == [
        AddChunk(8, 10),
        SendChunk("b", "reduce", 2, 8, 10, 2.0, ()),
    ]


def test_an_early_chunk_is_stored_and_goes_on_when_the_contribution_is_ready():
    machine = ring()
    assert machine.handle(chunk(), 0.0) == [StoreChunk(2, 4)]
    assert machine.waits_for is None
    assert machine.handle(ContributionReady(5.0), 0.0) == [
        ScaleOwn(0, 2),
        SendChunk("b", "reduce", 0, 0, 2, 5.0, ()),
        AddOwn(2, 4),
        DivideChunk(2, 4, 8.0),
        SendChunk("b", "gather", 1, 2, 4, 8.0, ()),
    ]


def test_an_early_chunk_with_other_counters_is_refused_when_mine_are_known():
    machine = ring()
    machine.handle(chunk(counters=(1,)), 0.0)
    assert machine.handle(ContributionReady(5.0), 0.0)[-1] == RefuseChunk("b", "1 counters, not 0")


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        (chunk(epoch=-1), DropChunk),
        (chunk(epoch=1), DropChunk),
        (chunk(number=2), DropChunk),
        (chunk("x"), RefuseChunk),
        (chunk("a"), RefuseChunk),
        (chunk(start=1), RefuseChunk),
        (chunk(stop=5), RefuseChunk),
        (chunk(block=7), RefuseChunk),
        (chunk(block=0, start=0, stop=2), RefuseChunk),
        (chunk(phase="gather"), RefuseChunk),
        (chunk(weight=math.nan), RefuseChunk),
        (chunk(weight=-1.0), RefuseChunk),
        (chunk(counters=(1,)), RefuseChunk),
    ],
)
def test_wrong_chunks_change_nothing(wrong, kind):
    machine = ring()
    machine.handle(ContributionReady(5.0), 0.0)
    assert [type(instruction) for instruction in machine.handle(wrong, 0.0)] == [kind]
    # The right one still has its full effect.
    assert machine.handle(chunk(), 0.0)[0] == AddChunk(2, 4)


def test_a_gathered_chunk_before_my_contribution_is_impossible_and_refused():
    (refused,) = ring().handle(chunk("b", "gather", 0, 0, 2, 8.0), 0.0)
    assert refused == RefuseChunk("b", "block 0 cannot be complete without this member")


def test_repeated_chunks_are_dropped_in_both_phases_and_while_early():
    machine = ring()
    machine.handle(chunk(), 0.0)
    dropped = [DropChunk("b", "a chunk that was there before")]
    assert machine.handle(chunk(), 0.0) == dropped
    machine.handle(ContributionReady(5.0), 0.0)
    assert machine.handle(chunk(), 0.0) == dropped
    final = chunk("b", "gather", 0, 0, 2, 8.0)
    machine.handle(final, 0.0)
    assert machine.handle(final, 0.0) == dropped


@pytest.mark.parametrize("weight", [-1.0, math.nan, math.inf])
def test_refuses_impossible_weights(weight):
    with pytest.raises(InvalidInput):
        ring().handle(ContributionReady(weight), 0.0)


def test_refuses_a_second_contribution_and_impossible_rings():
    machine = ring()
    machine.handle(ContributionReady(1.0), 0.0)
    with pytest.raises(InvalidInput):
        machine.handle(ContributionReady(1.0), 0.0)
    with pytest.raises(InvalidInput):
        ring("ab", "c")
    with pytest.raises(InvalidInput):
        ring("aba", "a")


class Simulation:
    """n members and a bag of events under way, taken in a random order, some of them twice or spoilt."""

    def __init__(self, parts, weights, counters, chunk_elements, chance):
        n, elements = len(parts), len(parts[0])
        self.members = tuple(f"m{i}" for i in range(n))
        spec = RingSpec("r", self.members, elements, chunk_elements)
        self.flights = {
            name: Flight(spec, Ring(self.members, name, elements, chunk_elements, 1, 0), part, weight)
            for name, part, weight in zip(self.members, parts, weights, strict=True)
        }
        self.results = {}
        self.sent_elements = dict.fromkeys(self.members, 0)
        self.refused = []
        self.chance = chance
        self.bag = [
            (name, ContributionReady(weight, counter), None)
            for name, weight, counter in zip(self.members, weights, counters, strict=True)
        ]

    def run(self, faults):
        while self.bag:
            name, event, body = self.bag.pop(self.chance.randrange(len(self.bag)))
            if faults and body is not None:
                self.disturb(name, event, body)
            self.take(name, event, body)
        return self

    def disturb(self, name, event, body):
        fields = {"sender": event.sender, "epoch": event.epoch, "round": event.round, "start": event.start}
        key, value = self.chance.choice(
            [("sender", "x"), ("epoch", -1), ("round", 9), ("start", event.start + 1), ("twice", 0)]
        )
        if key == "twice":
            self.take(name, event, body)
            return
        fields[key] = value
        wrong = ChunkArrived(
            fields["sender"],
            fields["epoch"],
            fields["round"],
            event.phase,
            event.block,
            fields["start"],
            event.stop,
            event.weight,
            event.counters,
        )
        self.take(name, wrong, body)

    def take(self, name, event, body):
        flight = self.flights[name]
        for instruction in flight.machine.handle(event, 0.0):
            match instruction:
                case SendChunk(to, phase, block, start, stop, weight, counters):
                    self.sent_elements[name] += stop - start
                    arrived = ChunkArrived(name, 0, 1, phase, block, start, stop, weight, counters)
                    self.bag.append((to, arrived, flight.room()[start:stop].clone()))
                case FinishRing(total, counters):
                    assert name not in self.results
                    self.results[name] = (flight.room(), total, counters)
                case DropChunk() | RefuseChunk():
                    self.refused.append(instruction)
                case _:
                    flight.compute(instruction, body)


@settings(max_examples=150, deadline=None)
@given(
    members=st.integers(1, 6),
    elements=st.integers(0, 40),
    chunk_elements=st.integers(1, 12),
    faults=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_any_order_of_events_gives_every_member_the_same_exact_mean(members, elements, chunk_elements, faults, seed):
    chance = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    parts = [torch.randn(elements, generator=generator) * 10 ** chance.uniform(-3, 3) for _ in range(members)]
    weights = [float(chance.choice([0, 1, 8, 500, 4096])) for _ in range(members)]
    counters = [(chance.randrange(9), chance.randrange(9)) for _ in range(members)]
    simulation = Simulation(parts, weights, counters, chunk_elements, chance).run(faults)

    assert set(simulation.results) == set(simulation.members)
    averages = [average for average, _, _ in simulation.results.values()]
    assert all(torch.equal(average.view(torch.int32), averages[0].view(torch.int32)) for average in averages)
    total = sum(weights)
    largest = tuple(map(max, *counters)) if members > 1 else counters[0]
    assert all(result[1:] == (total, largest) for result in simulation.results.values())
    # Conservation: what all sent is exactly 2 (n − 1) vectors, whatever was repeated or spoilt on the way.
    assert sum(simulation.sent_elements.values()) == 2 * (members - 1) * elements
    if members == 1:
        assert torch.equal(averages[0], parts[0])
    elif total == 0:
        assert not averages[0].any()
    else:
        exact = sum(w * p.double() for w, p in zip(weights, parts, strict=True)) / total
        scale = math.sqrt(sum(w / total * p.double().square().sum() for w, p in zip(weights, parts, strict=True)))
        assert (averages[0].double() - exact).norm() <= 1e-6 * scale


def test_each_member_sends_two_n_minus_one_nths():
    parts = [torch.ones(120) for _ in range(4)]
    simulation = Simulation(parts, [1.0] * 4, [()] * 4, 7, random.Random(0)).run(faults=False)
    assert set(simulation.sent_elements.values()) == {2 * 3 * 120 // 4}


def test_what_arrives_early_fits_beside_my_block():
    members = tuple("abcd")
    layout = Layout(21, 4, 3)
    machine = Ring(members, "a", 21, 3, 1, 0)
    stored = []
    for block in (1, 2, 3):
        for start, stop in layout.chunks(block):
            stored += machine.handle(ChunkArrived("d", 0, 1, "reduce", block, start, stop, 1.0), 0.0)
    first, last = layout.block(0)
    spans = [i for instruction in stored for i in range(instruction.start, instruction.stop)]
    assert sorted(spans) == [i for i in range(21) if not first <= i < last]
