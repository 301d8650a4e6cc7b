"""Which nodes have left, and on which of those that are alive something may be started."""

import pytest

from ravnest.recovery import NodesLeft


def test_nothing_is_started_on_a_node_that_left_until_somebody_says_that_it_is_back() -> None:
    left = NodesLeft()
    left.leave("a")
    left.look({"a", "b"})
    assert left.names == {"a"}
    assert left.without({"a", "b"}) == {"b"}
    left.back("a")
    assert left.without({"a", "b"}) == {"a", "b"}


@pytest.mark.parametrize(("by_clock", "stays_out"), [(False, False), (True, True)])
def test_one_that_was_gone_in_between_is_back_unless_the_clock_took_it_out(by_clock: bool, stays_out: bool) -> None:
    left = NodesLeft()
    left.leave("a", by_clock=by_clock)
    left.look({"b"})
    left.look({"a", "b"})
    assert ("a" in left.names) is stays_out


def test_one_that_has_only_given_notice_is_used_where_there_is_no_other() -> None:
    left = NodesLeft()
    left.leave("a", noticed=True)
    left.leave("b")
    assert left.without({"a", "b", "c"}) == {"c"}
    assert left.if_need_be({"a", "b", "c"}) == {"a", "c"}


@pytest.mark.parametrize("first", ["notice", "user"])
def test_what_a_user_asks_for_holds_whatever_the_system_says_before_and_after(first: str) -> None:
    left = NodesLeft()
    for noticed in (True, False) if first == "notice" else (False, True):
        left.leave("a", noticed=noticed)
    assert left.if_need_be({"a"}) == set()


def test_one_that_was_shut_out_stays_out_until_a_user_lets_it_in_again() -> None:
    left = NodesLeft()
    left.shut_out("a", "it lied")
    left.leave("a", noticed=True)
    left.look({"b"})
    left.look({"a", "b"})
    assert left.names == {"a"}
    assert left.if_need_be({"a", "b"}) == {"b"}
    assert dict(left.liars) == {"a": "it lied"}
    left.back("a")
    assert not left.liars
    assert left.without({"a"}) == {"a"}
