"""Clusters that leave hand on what they have made, each to one that stays."""

from hypothesis import given
from hypothesis import strategies as st

from ravnest.recovery import HandingOn, Way

RINGS = {"0": ["c0.s0", "c1.s0", "c2.s0"], "1": ["c0.s1", "c1.s0", "c2.s1"]}


def begun(*clusters, staying=("c2", "c1")):
    handing = HandingOn()
    return handing, [handing.begin(each, staying, RINGS) for each in clusters]


def test_all_rings_of_a_cluster_go_to_the_best_that_stays():
    handing, [ways] = begun("c0")
    assert ways == (Way("0", "c0.s0", "c2.s0"), Way("1", "c0.s1", "c2.s1"))
    assert handing.to("c0") == "c2"
    assert handing.takes("c2")
    assert not handing.takes("c1")


def test_another_that_leaves_goes_to_one_that_takes_nothing_yet():
    handing = HandingOn()
    handing.begin("c0", ["c2", "c1"], RINGS)
    handing.begin("c3", ["c2", "c1"], {"0": [*RINGS["0"], "c3.s0"]})
    assert [handing.to("c0"), handing.to("c3")] == ["c2", "c1"]


def test_nothing_begins_twice_nor_where_nobody_stays():
    handing, [_, again] = begun("c0", "c0")
    assert again == ()
    assert handing.begin("c1", [], RINGS) == ()
    assert handing.begin("c1", ["c2"], {}) == ()
    assert not handing.whole("c1", 0)


def test_it_is_whole_when_all_rings_have_arrived():
    handing, [(first, second)] = begun("c0")
    assert not handing.arrived(first, 7)
    assert not handing.arrived(first, 7)
    assert not handing.whole("c0", 7)
    assert handing.arrived(second, 7)
    assert handing.whole("c0", 7)
    assert not handing.whole("c0", 8)
    assert not handing.arrived(Way("0", "c9.s0", "c2.s0"), 7)


def test_what_is_not_of_the_same_updates_or_not_of_all_is_asked_for_again():
    handing, [ways] = begun("c0")
    first, second = ways
    handing.arrived(first, 7)
    assert handing.again("c0") == ()
    handing.arrived(second, 8)
    assert not handing.whole("c0", 8)
    assert handing.again("c0") == ways
    assert handing.again("c0") == ()
    handing.arrived(second, 8)
    handing.arrived(first, 8)
    assert handing.whole("c0", 8)


def test_what_counts_already_is_told_when_it_is_given():
    handing, [ways] = begun("c0")
    handing.committed(4, ["c0", "c1"])
    for way in ways:
        handing.arrived(way, 7)
    handing.is_out("c0")
    handing.committed(5, ["c1"])
    handing.committed(6, ["c0"])
    assert handing.out == ["c0"]
    assert handing.given("c0") == (ways, (4, 6))
    assert handing.out == []


def test_it_is_lost_with_who_gives_and_with_who_takes():
    handing, _ = begun("c0")
    assert handing.lost("c1") == []
    assert handing.lost("c0") == ["c0"]
    handing.begin("c0", ["c2"], RINGS)
    assert handing.lost("c2") == ["c0"]
    assert not handing.whole("c0", 7)


def test_one_that_is_out_is_not_needed_any_more():
    handing, [ways] = begun("c0")
    for way in ways:
        handing.arrived(way, 7)
    handing.is_out("c0")
    assert handing.lost("c0") == []
    assert handing.lost("c2") == ["c0"]


@given(st.lists(st.tuples(st.sampled_from(["begin", "arrive", "out", "give", "lose"]), st.integers(0, 2)), max_size=40))
def test_whatever_happens_nothing_is_given_that_is_not_whole_or_twice(steps):
    handing, given_on, ways = HandingOn(), [], {}
    for what, number in steps:
        cluster = f"c{number}"
        match what:
            case "begin":
                made = handing.begin(cluster, [f"c{i}" for i in range(3) if i != number], RINGS)
                ways |= {cluster: list(made)} if made else {}
            case "arrive" if ways.get(cluster):
                handing.arrived(ways[cluster].pop(), 7)
            case "out" if handing.whole(cluster, 7):
                handing.is_out(cluster)
            case "give" if cluster in handing.out:
                given_on.append(cluster)
                assert handing.given(cluster)[0]
                assert ways.pop(cluster) == []
            case "lose":
                for each in handing.lost(cluster):
                    ways.pop(each, None)
        assert all(handing.whole(each, 7) for each in handing.out)
    assert set(handing.out) <= ways.keys()
