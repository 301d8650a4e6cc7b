"""Clusters of a simulated run hand on what they have made when they leave."""

from ravnest.simulator.handed_progress import HandedProgress

RINGS = {"ring0": ["a.s0", "b.s0", "c.s0"]}


def handed(*, whole=True):
    """`a` leaves, with 40 samples of which 10 are averaged, and hands them on to `b`."""
    made = HandedProgress()
    assert not made.may_go("a", 10, 40, drained=True)
    [way] = made.begin("a", ["b", "c"], RINGS)
    assert (way.giver, way.taker) == ("a.s0", "b.s0")
    if whole:
        assert made.arrived(way, 40)
        assert made.may_go("a", 10, 40, drained=False)
    return made


def test_a_cluster_goes_when_all_is_averaged_or_with_another():
    made = handed(whole=False)
    assert not made.may_go("a", 10, 40, drained=True)
    assert not made.may_go("a", 40, 40, drained=False)
    assert made.may_go("a", 40, 40, drained=True)
    assert handed().goes_on_at("a", 10) == 40


def test_it_counts_with_the_first_round_that_is_opened_once_it_is_settled():
    made = handed()
    made.give_on(["a"], 4)
    assert made.committed(5) == {}
    made.give_on([], 5)
    assert made.committed(5) == {}
    assert made.committed(6) == {"a": 40}
    assert made.goes_on_at("a", 10) == 10


def test_who_has_to_give_something_on_does_not_go_before_that():
    made = handed()
    assert not made.may_go("b", 20, 20, drained=True)
    assert made.begin("b", ["c"], RINGS) == ()
    made.give_on([], 0)
    made.committed(1)
    assert made.may_go("b", 20, 20, drained=True)


def test_it_is_lost_with_who_had_it_and_vanishes_where_its_maker_has_gone_on():
    made = handed()
    made.lost("b", ["c"])
    assert (made.goes_on_at("a", 10), made.vanished) == (10, 0)
    made = handed()
    made.lost("b", ["a", "c"])
    assert made.vanished == 30
    assert [made.in_anchor({"a": averaged, "b": 5}) for averaged in (10, 25, 40, 50)] == [15, 15, 15, 25]
