from ravnest.driver.roster import Roster
from ravnest.recovery import RETURNS_S
from ravnest.stage.messages import Drained


def test_who_comes_follows_at_first_and_who_leaves_trains_until_it_is_gone():
    roster = Roster({"a": 2, "b": 1})
    roster.add("c", 1)
    roster.leaving["b"] = "the night is over"
    roster.drained["b"] = Drained(micro_batches=1, updates=1)
    assert roster.names == ["a", "b", "c"]
    assert roster.training == ["a", "b"]
    assert roster.staying == ["a"]
    assert roster.stages == ["a.s0", "a.s1", "b.s0", "c.s0"]
    assert roster.first_stages == ["a.s0", "b.s0"]
    roster.newcomers.remove("c")
    assert roster.training == ["a", "b", "c"]
    assert roster.remove("b") == "the night is over"
    assert roster.remove("a") is None
    assert ("b" in roster, roster.drained, roster.leaving) == (False, {}, {})


def test_a_cluster_that_is_about_to_return_is_awaited_until_it_is_here_or_time_is_over():
    roster = Roster({"a": 1, "b": 1, "c": 1})
    roster.leaving["c"] = "the night is over"
    for name in ("a", "b", "c"):
        roster.returns(name)
    assert [name for name in "abc" if roster.awaits(name)] == ["a", "b"]
    assert roster.overdue(100.0) == []  # the first look begins the time
    roster.remove("a")
    roster.add("a", 1)
    assert roster.overdue(100.0 + 0.9 * RETURNS_S) == []
    assert roster.overdue(100.0 + RETURNS_S) == ["b"]
    assert roster.overdue(200.0) == []
    assert not roster.awaits("b")
