"""The reducer on the in-process network: buffers, several rings and rounds at once, refusals, backpressure."""

import math
import random

import msgspec
import pytest
import torch

from ring_allreduce.errors import ContributionRefused, InvalidInput
from ring_allreduce.ring.messages import RING_KINDS, Chunk
from ring_allreduce.ring.reducer import RingReducer
from ring_allreduce.transport.emulation.links import LinkShape
from ring_allreduce.transport.endpoint import TransportLimits
from ring_allreduce.transport.in_process import InProcessNetwork
from ring_allreduce.transport.message import Codec
from ring_allreduce.transport.stats import Lane
from tests.unit.ring_allreduce.fleet import Fleet, Other, header, spec


@pytest.mark.parametrize("elements", [0, 1, 2, 50, 1000])
@pytest.mark.parametrize("members", ["a", "ab", "abcd"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_averages(elements, members, dtype):
    fleet = Fleet([spec(members=members, elements=elements, dtype=dtype)])
    generator = torch.Generator().manual_seed(elements)
    parts = [torch.randn(elements, generator=generator, dtype=dtype) for _ in members]
    weights = [float(i + 1) for i in range(len(members))]
    for name, part, weight in zip(members, parts, weights, strict=True):
        fleet.reducers[name].contribute(1, "r", part, weight, (int(weight), 7))
    kept = [part.clone() for part in parts]
    fleet.settle()
    exact = sum(w * p.double() for w, p in zip(weights, parts, strict=True)) / sum(weights)
    results = [fleet.results[name]["r", 1] for name in members]
    assert all(torch.equal(result.average, results[0].average) for result in results)
    torch.testing.assert_close(results[0].average.double(), exact, rtol=1e-5, atol=1e-6)
    assert {(r.total_weight, r.counters) for r in results} == {(sum(weights), (len(members), 7))}
    assert all(torch.equal(part, before) for part, before in zip(parts, kept, strict=True))
    assert all(fleet.reducers[name].progress() == {} for name in members)


def test_several_rings_and_rounds_in_flight_in_any_order():
    specs = [spec("r0", "abc", 40), spec("r1", "cb", 33), spec("r2", "a", 5)]
    fleet = Fleet(specs, max_rounds=3)
    chance, generator = random.Random(5), torch.Generator().manual_seed(5)
    parts = {
        (number, s.name, name): torch.randn(s.elements, generator=generator)
        for number in (1, 2, 3)
        for s in specs
        for name in s.members
    }
    todo = list(parts)
    chance.shuffle(todo)
    for number, ring, name in todo:
        fleet.reducers[name].contribute(number, ring, parts[number, ring, name], 2.0)
        fleet.turn(chance.choice("abc"))
    fleet.settle()
    for s in specs:
        for number in (1, 2, 3):
            mean = sum(parts[number, s.name, name] for name in s.members) / len(s.members)
            for name in s.members:
                torch.testing.assert_close(fleet.results[name][s.name, number].average, mean)


@pytest.mark.parametrize("robust", ["trimmed_mean", "centred_clipping"])
@pytest.mark.parametrize("wire", ["exact", "bfloat16", "int8"])
def test_a_robust_ring_gives_all_members_the_same_bytes_and_tells_what_each_gave(robust, wire):
    fleet = Fleet([spec(members="abcde", elements=50, chunk=7, direct=True, robust=robust, wire=wire)], max_rounds=2)
    generator = torch.Generator().manual_seed(1)
    parts = {name: 1.0 + 0.1 * torch.randn(50, generator=generator) for name in "abcde"} | {
        "d": torch.full((50,), -900.0)
    }
    for number in (1, 2):
        for name, part in parts.items():
            fleet.reducers[name].contribute(number, "r", part, 0.0 if (number, name) == (2, "b") else 8.0)
        fleet.settle()
        results = [fleet.results[name]["r", number] for name in parts]
        assert all(torch.equal(result.average, results[0].average) for result in results)
        assert (results[0].average - 1.0).abs().max() < 0.5
        figures = results[0].contributions
        assert all(result.contributions == figures for result in results)
        assert all(result.digests == results[0].digests for result in results)
        assert len(set(results[0].digests.values())) == 5
        assert figures["d"].distance > 100 * figures["a"].distance
        assert figures["d"].cosine < 0 < figures["a"].cosine
        assert (figures["b"].norm == 0.0) == (number == 2)
        for reducer in fleet.reducers.values():
            reducer.commit(number)


@pytest.mark.parametrize("change", ["numbers", "weight"])
def test_what_a_member_sends_to_one_alone_has_another_digest_there_and_nowhere_else(change, monkeypatch):
    """Its last chunk goes to "b" with another number, or with another weight as all others."""
    fleet = Fleet([spec(members="abcd", elements=50, chunk=7, direct=True, robust="trimmed_mean")])
    honest = fleet.endpoints["c"].send

    def send(peer, lane, message, tensors=()):
        if peer == "b" and isinstance(message, Chunk):
            if change == "weight":
                message = msgspec.structs.replace(message, weight=2.0)
            elif message.stop == 50:
                tensors = [tensor + 1.0 for tensor in tensors]
        honest(peer, lane, message, tensors)

    monkeypatch.setattr(fleet.endpoints["c"], "send", send)
    for number, name in enumerate("abcd"):
        fleet.reducers[name].contribute(1, "r", torch.full((50,), float(number)), 1.0)
    fleet.settle()
    digests = {name: fleet.results[name]["r", 1].digests for name in "abcd"}
    assert digests["a"] == digests["c"] == digests["d"]
    assert {of for of in "abcd" if digests["b"][of] != digests["a"][of]} == {"c"}


def test_chunks_that_come_in_another_order_have_the_same_digest():
    ring = spec(members="ab", elements=21, chunk=7, direct=True, robust="trimmed_mean")
    found = []
    for order in ([0, 7, 14], [14, 0, 7]):
        fleet = Fleet([ring])
        fleet.reducers["a"].contribute(1, "r", torch.zeros(21), 1.0)
        for start in order:
            chunk = header(phase="direct", block=0, start=start, stop=start + 7)
            fleet.endpoints["b"].send("a", Lane.BULK, chunk, [torch.arange(7.0) + start])
        fleet.turn("a")
        found.append(fleet.results["a"]["r", 1].digests)
    assert found[0] == found[1]


def test_a_robust_ring_of_what_compression_left_loses_nothing_of_who_has_no_weight():
    """A member without weight carries what compression took to its next contribution."""
    fleet = Fleet([spec(members="abc", elements=64, chunk=64, direct=True, robust="trimmed_mean", wire="int4")])
    ramp = torch.linspace(0.0, 1.0, 64)
    total = torch.zeros(64)
    for number in range(1, 41):
        for name in "abc":
            fleet.reducers[name].contribute(number, "r", ramp, float(number % 2))
        fleet.settle()
        total += fleet.results["a"]["r", number].average
        for reducer in fleet.reducers.values():
            reducer.commit(number)
    # 20 rounds have a weight: their sum is 20 times the ramp but for one rounding, which is up to 1/14.
    assert (total - 20 * ramp).abs().max() < 0.15


def test_bytes_on_the_wire_are_two_n_minus_one_nths_and_little_more():
    fleet = Fleet([spec(members="abcd", elements=200_000, chunk=16_384)])
    for name in "abcd":
        fleet.reducers[name].contribute(1, "r", torch.ones(200_000), 1.0)
    fleet.settle()
    ideal = 2 * 3 / 4 * 200_000 * 4
    for name, endpoint in fleet.endpoints.items():
        sent = sum(traffic.n_bytes for (_, lane), traffic in endpoint.stats.sent.items() if lane is Lane.BULK)
        assert ideal <= sent <= 1.01 * ideal, name


def test_a_full_queue_delays_chunks_and_loses_none():
    clock = [0.0]
    link = LinkShape(bytes_per_s=1000.0, latency_s=0.5)
    fleet = Fleet(
        [spec(members="ab", elements=400, chunk=5)],
        now=lambda: clock[0],
        links={("a", "b"): link, ("b", "a"): link},
        limits=TransportLimits(queue_messages=3),
    )
    for name in "ab":
        fleet.reducers[name].contribute(1, "r", torch.full((400,), ord(name) * 1.0), 1.0)
    while (due := fleet.network.next_due_s()) is not None:
        clock[0] = due
        fleet.turn("a")
        fleet.turn("b")
    for name in "ab":
        assert fleet.results[name]["r", 1].average.unique().tolist() == [97.5]


def test_chunks_of_a_finished_round_and_repeated_ones_are_counted():
    fleet = Fleet([spec(members="ab", elements=50, chunk=7)])
    fleet.endpoints["a"].send("b", Lane.BULK, header(block=0, start=0, stop=7), [torch.ones(7)])
    fleet.endpoints["a"].send("b", Lane.BULK, header(block=0, start=0, stop=7), [torch.ones(7)])
    fleet.turn("b")
    assert fleet.reducers["b"].drops == {"a chunk that was there before": 1}
    fleet = Fleet([spec(members="ab")])
    for name in "ab":
        fleet.reducers[name].contribute(1, "r", torch.ones(50), 1.0)
    fleet.settle()
    fleet.endpoints["a"].send("b", Lane.BULK, header(), [torch.ones(7)])
    fleet.turn("b")
    assert fleet.reducers["b"].drops == {"of a finished round": 1}


def test_another_epoch_has_no_effect():
    fleet = Fleet([spec(members="ab")])
    fleet.endpoints["a"].epoch = 1
    fleet.endpoints["a"].send("b", Lane.BULK, header(block=0, start=0, stop=7), [torch.ones(7)])
    fleet.turn("b")
    assert fleet.reducers["b"].drops == {"epoch 1, not 0": 1}
    fleet.endpoints["b"].epoch = 2
    fleet.endpoints["a"].send("b", Lane.BULK, header(block=0, start=0, stop=7), [torch.ones(7)])
    fleet.turn("b")
    assert fleet.reducers["b"].drops == {"epoch 1, not 0": 1, "epoch 1, not 2": 1}


@pytest.mark.parametrize(
    ("message", "tensors", "reason"),
    [
        (header(), [torch.full((7,), math.nan)], "NaN or infinite"),
        (header(), [torch.tensor([math.inf, -math.inf, 0, 0, 0, 0, 0])], "NaN or infinite"),
        (header(), [torch.ones(6)], r"\(6,\)"),
        (header(), [torch.ones(7, dtype=torch.float16)], "float16"),
        (header(), [], "0 tensors"),
        (header(), [torch.ones(7), torch.ones(7)], "2 tensors"),
        (header(start=26, stop=33), [torch.ones(7)], "no chunk of"),
        (header(start=33, stop=26), [torch.ones(7)], r"\(7,\)"),
        (header(weight=math.inf), [torch.ones(7)], r"\$\.weight"),
        (header(weight=1e13), [torch.ones(7)], "weight 1000"),
        (header(weight=1e-13), [torch.ones(7)], "weight 1e-13"),
        (header(), [torch.full((7,), 3e38)], "beyond 1.7"),
        (header(weight=1e-3), [torch.full((7,), 1e38)], "beyond 1.7"),
        (header(ring="x"), [torch.ones(7)], "not in the ring"),
        (header(round=3), [torch.ones(7)], "rounds ahead"),
        (header(block=0, start=0, stop=7, phase="gather"), [torch.ones(7)], "cannot be complete"),
    ],
)
def test_what_disagrees_is_refused_with_the_senders_name_and_has_no_effect(message, tensors, reason):
    fleet = Fleet([spec(members="ab")], max_rounds=2)
    fleet.endpoints["b"].send("a", Lane.BULK, message, tensors)
    (delivery,) = fleet.endpoints["a"].poll(0.0)
    with pytest.raises(ContributionRefused, match=reason) as caught:
        fleet.reducers["a"].on_delivery(delivery)
    assert caught.value.member == "b"
    for name in "ab":
        fleet.reducers[name].contribute(1, "r", torch.ones(50), 1.0)
    fleet.settle()
    assert fleet.results["a"]["r", 1].average.tolist() == [1.0] * 50


def test_my_own_infinite_contribution_is_refused_with_my_name():
    fleet = Fleet([spec(members="ab")])
    with pytest.raises(ContributionRefused, match="'a'"):
        fleet.reducers["a"].contribute(1, "r", torch.full((50,), math.inf), 1.0)
    assert fleet.endpoints["b"].poll(0.0) == []


@pytest.mark.parametrize(
    ("number", "ring", "vector", "weight"),
    [
        (1, "x", torch.ones(50), 1.0),
        (1, "r", torch.ones(49), 1.0),
        (1, "r", torch.ones(50, 1), 1.0),
        (1, "r", torch.ones(50).double(), 1.0),
        (1, "r", torch.ones(50), -1.0),
        (1, "r", torch.ones(50), math.nan),
        (0, "r", torch.ones(50), 1.0),
        (2, "r", torch.ones(50), 1.0),
    ],
)
def test_refuses_contributions_of_the_wrong_form(number, ring, vector, weight):
    fleet = Fleet([spec(members="ab")], max_rounds=1)
    with pytest.raises(InvalidInput):
        fleet.reducers["a"].contribute(number, ring, vector, weight)


def test_contributes_once_to_a_round():
    reducer = Fleet([spec(members="ab")]).reducers["a"]
    reducer.contribute(1, "r", torch.ones(50), 1.0)
    with pytest.raises(InvalidInput):
        reducer.contribute(1, "r", torch.ones(50), 1.0)
    assert reducer.progress()["r", 1].waits_for == "b"


def test_other_messages_are_left_to_others():
    fleet = Fleet([spec(members="ab")])
    fleet.endpoints["a"].send("b", Lane.BULK, Other())
    (delivery,) = fleet.endpoints["b"].poll(0.0)
    assert fleet.reducers["b"].on_delivery(delivery) is False


@pytest.mark.parametrize(
    ("specs", "max_rounds"),
    [
        ([spec()], 0),
        ([spec(), spec()], 1),
        ([spec(members="xy")], 1),
        ([spec(dtype=torch.int64)], 1),
        ([spec(robust="trimmed_mean")], 1),
        ([spec(robust="trimmed_mean", direct=True, dtype=torch.float64)], 1),
    ],
)
def test_refuses_impossible_reducers(specs, max_rounds):
    endpoint = InProcessNetwork().endpoint("a", Codec(RING_KINDS))
    with pytest.raises(InvalidInput):
        RingReducer(endpoint, specs, max_rounds=max_rounds)
