from ravnest.driver.roster import Roster
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
