from ravnest.driver.observe.link_figures import LinkFigures
from ravnest.driver.observe.report import Hop
from ravnest.stage import messages as m


def used(pipeline: dict[str, int], bulk: dict[str, int]) -> m.LinksUsed:
    return m.LinksUsed(pipeline_bytes=pipeline, bulk_bytes=bulk)


def finished(round_: int, ring: int = 0, came: int = 0, **hops: float) -> m.RingFinishedMessage:
    return m.RingFinishedMessage(round=round_, ring=ring, epoch=0, received_bytes=came, hops=hops)


def test_what_a_link_carries_is_the_difference_of_two_reports_over_their_time() -> None:
    links = LinkFigures()
    links.told("a", used({"b": 1000}, {"c": 50}), 10.0)
    assert links.since_last() == []
    links.told("a", used({"b": 3000}, {"c": 50, "d": 80}), 14.0)
    assert links.since_last() == [
        {"from": "a", "to": "b", "pipeline_bytes_per_s": 500.0},
        {"from": "a", "to": "c", "bulk_bytes_per_s": 0.0},
        {"from": "a", "to": "d", "bulk_bytes_per_s": 20.0},
    ]
    assert links.since_last() == []


def test_a_stage_that_begins_anew_has_sent_nothing_before() -> None:
    links = LinkFigures()
    links.told("a", used({"b": 1000}, {}), 10.0)
    links.told("a", used({"b": 10}, {}), 12.0)
    links.told("a", used({"b": 20}, {}), 12.0)  # at the same moment: no rate
    links.told("a", used({"b": 120}, {}), 22.0)
    assert links.since_last() == [{"from": "a", "to": "b", "pipeline_bytes_per_s": 10.0}]


def test_the_slowest_hop_of_a_round_is_that_of_all_its_rings() -> None:
    links = LinkFigures()
    links.told("b", finished(1, a=500.0), 1.0)
    links.told("c", finished(1, ring=1, a=200.0), 1.0)
    links.told("c", finished(1, ring=2, a=300.0), 1.0)  # the same way in another ring
    links.told("b", finished(2, a=7.0), 2.0)
    links.told("b", finished(3), 2.0)
    assert links.committed(1).slowest_hop == Hop("a", "c", 200.0)
    assert links.committed(1).slowest_hop is None
    assert links.committed(2).slowest_hop == Hop("a", "b", 7.0)
    assert links.committed(3).slowest_hop is None
    for number in range(1000, 2000):  # a stage that names rounds which nobody has opened
        links.told("z", finished(number, a=1.0), 3.0)
    links.told("b", finished(4, a=8.0), 3.0)
    assert links.committed(4).slowest_hop == Hop("a", "b", 8.0)
    assert links.committed(1999).slowest_hop is None
    assert links.since_last()[:2] == [
        {"from": "a", "to": "b", "hop_bytes_per_s": 8.0},
        {"from": "a", "to": "c", "hop_bytes_per_s": 300.0},
    ]


def test_the_bytes_of_a_round_are_those_of_all_rings_of_a_stage_and_count_once() -> None:
    links = LinkFigures()
    links.told("b", finished(1, came=100), 1.0)
    links.told("b", finished(1, ring=1, came=20), 1.0)
    links.told("b", finished(1, came=70), 2.0)  # told again in a new epoch
    links.told("a", finished(1, came=5), 2.0)
    links.told("a", finished(2, came=9), 2.0)
    assert links.committed(1).by_stage == {"a": 5, "b": 90}
    assert links.committed(1).by_stage == {}
    assert links.committed(2).by_stage == {"a": 9}
