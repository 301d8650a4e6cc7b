import torch

from ravnest.runtime import messages as m
from ravnest.runtime.exchange import RoundExchange
from ravnest.runtime.segments import Contribution
from ravnest.runtime.setup import SegmentSetup
from ring_allreduce.transport import InProcessNetwork, Lane

RINGS = {0: ("x", "y"), 1: ("x",)}


class Group:
    """Members x and y share ring 0, and x is alone in ring 1; the driver listens."""

    def __init__(self, max_lag=1):
        network = InProcessNetwork()
        self.driver = network.endpoint(m.DRIVER, m.codec())
        self.endpoints = {name: network.endpoint(name, m.codec()) for name in ("x", "y")}
        network.connect_all()
        self.exchanges = {
            name: RoundExchange(endpoint, [segment(ring) for ring in RINGS if name in RINGS[ring]], max_lag)
            for name, endpoint in self.endpoints.items()
        }

    def contribute(self, name, number, value, weight=1.0):
        parts = [Contribution(ring, torch.full((3,), value), weight, ()) for ring in RINGS if name in RINGS[ring]]
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


def segment(ring):
    return SegmentSetup(ring, RINGS[ring], ("w",), (), (), (), elements=3, chunk_elements=2, keeper=False)


def test_a_round_is_averaged_by_weight_reported_and_merged_only_when_committed():
    group = Group()
    group.contribute("x", 1, 1.0, weight=1.0)
    group.contribute("y", 1, 4.0, weight=2.0)
    assert group.pump() == {"x": [], "y": []}
    assert group.reports() == [("x", 1, 0), ("x", 1, 1), ("y", 1, 0)]
    assert group.exchanges["x"].on_committed(m.RoundCommitted(round=1)) == [1]
    averages, save = group.exchanges["x"].take(1)
    assert not save
    assert averages[0].vector.tolist() == [3.0, 3.0, 3.0]
    assert averages[0].total_weight == 3.0
    assert averages[1].vector.tolist() == [1.0, 1.0, 1.0]
    assert group.exchanges["x"].take(1) == ({}, False)  # forgotten


def test_a_commit_that_overtakes_the_last_chunks_waits_for_them():
    group = Group()
    group.contribute("x", 1, 1.0)
    assert group.exchanges["x"].on_committed(m.RoundCommitted(round=1, save=True)) == []
    group.contribute("y", 1, 3.0)
    assert group.pump() == {"x": [1], "y": []}
    averages, save = group.exchanges["x"].take(1)
    assert save
    assert averages[0].vector.tolist() == [2.0, 2.0, 2.0]


def test_rounds_that_overlap_are_merged_in_order_and_saved_as_ordered():
    group = Group(max_lag=2)
    for number in (1, 2):
        group.contribute("x", number, float(number))
        group.contribute("y", number, float(number))
    group.pump()
    y = group.exchanges["y"]
    assert y.on_committed(m.RoundCommitted(round=2, save=True)) == []
    assert y.on_committed(m.RoundCommitted(round=1)) == [1, 2]
    assert [y.take(number)[1] for number in (1, 2)] == [False, True]


def test_only_chunks_are_its_business():
    group = Group()
    group.driver.send("x", Lane.PIPELINE, m.Go())
    (delivery,) = group.endpoints["x"].poll(0.0)
    assert not group.exchanges["x"].on_delivery(delivery)
