from hypothesis import given, settings
from hypothesis import strategies as st

from ravnest.profiling.findings import CutOff, cut_off
from ravnest.profiling.pairing import Pair


def ways(names: str) -> set[Pair]:
    return {(a, b) for a in names for b in names if a != b}


def of(nodes: str, tried: set[Pair]) -> CutOff:
    """Where `nodes` are down for all."""
    return cut_off(tried, {pair for pair in tried if set(pair) & set(nodes)})


def test_the_one_that_nobody_reaches_is_cut_off() -> None:
    found = of("x", ways("abcx"))
    assert found.receives_nothing == found.sends_nothing == {"x"}
    assert found.peers("x") == ["a", "b", "c"]


def test_a_node_with_many_mute_peers_is_not_to_blame_though_it_alone_would_explain_all_failures() -> None:
    """A star: the hub, with this machine the only one that tries its five peers, reaches nobody but that machine."""
    star = {way for peer in "abcde" for end in "ht" for way in ((end, peer), (peer, end))} | {("h", "t"), ("t", "h")}
    found = of("abcde", star)
    assert found.receives_nothing == found.sends_nothing == set("abcde")


def test_two_that_both_reach_others_are_not_cut_off_from_each_other_by_one_of_them() -> None:
    tried = ways("abc")
    found = cut_off(tried, {("a", "b"), ("b", "a")})
    assert not found.receives_nothing | found.sends_nothing
    assert found.lies_between(("a", "b"))


def test_a_single_failure_and_a_net_in_which_nothing_works_leave_open_whose_it_is() -> None:
    for tried in ({("a", "b")}, ways("abcd")):
        found = cut_off(tried, tried)
        assert not found.receives_nothing | found.sends_nothing
        assert not any(found.explains(pair) or found.lies_between(pair) for pair in tried)


@settings(deadline=None)
@given(st.sets(st.sampled_from("abcdefg"), max_size=5), st.sets(st.sampled_from(sorted(ways("abcdefg")))))
def test_nobody_is_blamed_who_has_got_through_and_all_who_are_down_are_where_two_others_are_up(
    down: set[str], more: set[Pair]
) -> None:
    tried = ways("abcdefg")
    failed = {pair for pair in tried if set(pair) & down} | more
    found = cut_off(tried, failed)
    assert not found.receives_nothing & {b for _, b in tried - failed}
    assert not found.sends_nothing & {a for a, _ in tried - failed}
    if not more and len(set("abcdefg") - down) >= 2:
        assert found.receives_nothing == found.sends_nothing == down
