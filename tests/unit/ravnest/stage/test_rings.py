from types import SimpleNamespace

import torch

from ravnest.stage import messages as m
from ravnest.stage.rings import SegmentContribution, StageRings
from ravnest.stage.setup import SegmentSetup
from ring_allreduce import RingSpec
from ring_allreduce.transport import InProcessNetwork, Lane

RINGS = {0: ("x", "y"), 1: ("x",), 2: ("y", "x")}


class Group:
    """Members x and y share rings 0 and 2, and x is alone in ring 1; the driver listens. Ring 0 has no buffers."""

    def __init__(self, max_lag=1):
        network = InProcessNetwork()
        self.driver = network.endpoint(m.DRIVER, m.codec())
        self.endpoints = {name: network.endpoint(name, m.codec()) for name in ("x", "y")}
        network.connect_all()
        self.exchanges = {name: StageRings(setup(name, max_lag), endpoint) for name, endpoint in self.endpoints.items()}

    def contribute(self, name, number, value, weight=1.0):
        parts = [
            SegmentContribution(
                ring, torch.full((3,), value), torch.full((2 * ring,), 10 * value), weight, (int(value),)
            )
            for ring in RINGS
            if name in RINGS[ring]
        ]
        self.exchanges[name].contribute(number, parts)

    def pump(self):
        """All chunks to their ends; the merges that each member is told of meanwhile."""
        merges = {name: [] for name in self.exchanges}
        for _ in range(10):
            for name, exchange in self.exchanges.items():
                for delivery in self.endpoints[name].poll(0.0):
                    assert exchange.on_delivery(delivery)
                merges[name] += exchange.pump()
        return merges

    def reports(self):
        return sorted((each.sender, each.message.round, each.message.ring) for each in self.driver.poll(0.0))


def setup(name, max_lag):
    """What StageRings reads of a StageSetup."""
    segments = [segment(ring) for ring in RINGS if name in RINGS[ring]]
    job = SimpleNamespace(max_lag=max_lag)
    return SimpleNamespace(name=name, segments=segments, job=job)


def segment(ring):
    progress = RingSpec(str(ring), RINGS[ring], elements=3, chunk_elements=2)
    buffers = RingSpec(f"{ring}.buffers", RINGS[ring], elements=2 * ring, chunk_elements=2) if ring else None
    return SegmentSetup(ring, ("w",), ("mean",) if ring else (), ("n",), (), progress, buffers, keeper=False)


def test_a_round_is_averaged_by_weight_reported_and_merged_only_when_committed():
    group = Group()
    group.contribute("x", 1, 1.0, weight=1.0)
    group.contribute("y", 1, 4.0, weight=2.0)
    assert group.pump() == {"x": [], "y": []}
    reports = {(each.sender, each.message.ring): each.message for each in group.driver.poll(0.0)}
    # Of a vector of n numbers in a ring of two, n come: the half of the sum, and the half of the mean.
    came = {("x", 0): 3, ("x", 1): 0, ("x", 2): 3 + 4, ("y", 0): 3, ("y", 2): 3 + 4}
    assert {place: message.received_bytes for place, message in reports.items()} == {
        place: 4 * numbers for place, numbers in came.items()
    }
    assert {message.round for message in reports.values()} == {1}
    assert group.exchanges["x"].on_committed(m.RoundCommittedMessage(round=1)) == [1]
    averages, save = group.exchanges["x"].take(1)
    assert not save
    assert averages[0].vector.tolist() == [3.0, 3.0, 3.0]
    assert averages[0].total_weight == 3.0
    assert averages[1].vector.tolist() == [1.0, 1.0, 1.0]
    assert [averages[ring].buffers.tolist() for ring in RINGS] == [[], [10.0, 10.0], [30.0] * 4]
    assert [averages[ring].counters for ring in RINGS] == [(4,), (1,), (4,)]
    assert group.exchanges["x"].take(1) == ({}, False)  # forgotten


def test_rounds_that_overlap_are_merged_in_order_and_saved_as_ordered():
    group = Group(max_lag=2)
    for number in (1, 2):
        group.contribute("x", number, float(number))
        group.contribute("y", number, float(number))
    group.pump()
    y = group.exchanges["y"]
    assert y.on_committed(m.RoundCommittedMessage(round=1)) == [1]
    assert y.on_committed(m.RoundCommittedMessage(round=2, save=True)) == [2]
    assert y.on_committed(m.RoundCommittedMessage(round=1)) == []
    assert [y.take(number)[1] for number in (1, 2)] == [False, True]


def test_a_ring_is_reported_once_its_buffers_are_here_too():
    group = Group()
    held_back = []
    for name in group.exchanges:
        group.contribute(name, 1, 1.0)
    for _ in range(10):
        for name, exchange in group.exchanges.items():
            for delivery in group.endpoints[name].poll(0.0):
                late = getattr(delivery.message, "ring", "") == "2.buffers" and name == "y"
                held_back.append(delivery) if late else exchange.on_delivery(delivery)
            exchange.pump()
    assert [report[2] for report in group.reports() if report[0] == "y"] == [0]
    for delivery in held_back:
        group.exchanges["y"].on_delivery(delivery)
    group.pump()
    assert [report[2] for report in group.reports() if report[0] == "y"] == [2]


def test_what_was_merged_is_forgotten():
    group = Group()
    for number in (1, 2, 3):
        for name in group.exchanges:
            group.contribute(name, number, float(number))
        group.pump()
        for exchange in group.exchanges.values():
            assert exchange.on_committed(m.RoundCommittedMessage(round=number)) == [number]
            exchange.take(number)
            exchange.release(number)
            assert exchange.unmerged == []


def test_only_chunks_are_its_business():
    group = Group()
    group.driver.send("x", Lane.PIPELINE, m.Go())
    (delivery,) = group.endpoints["x"].poll(0.0)
    assert not group.exchanges["x"].on_delivery(delivery)
