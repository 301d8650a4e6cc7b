from ravnest.driver.newcomers import Newcomers


def one(first_round=None):
    newcomers = Newcomers()
    newcomers.add("b", ["b.s0", "b.s1"])
    newcomers.without_donors("b")
    if first_round is not None:
        newcomers.resumed({"a.s0": 1, "b.s0": first_round, "b.s1": first_round})
    return newcomers


def test_no_round_is_saved_for_it_before_it_knows_its_first():
    assert not one().wait_for(7)
    assert not one(first_round=7).wait_for(5)
    assert one(first_round=7).wait_for(6)


def test_it_is_handed_the_round_that_was_saved_for_it_and_no_other():
    newcomers = one(first_round=7)
    newcomers.saving(5)
    assert newcomers.written(5) == [], "the averages of round 6 never come to it"
    newcomers.saving(8)
    assert not newcomers.wait_for(9)
    assert newcomers.written(8) == ["b"]


def test_it_gets_another_round_where_the_checkpoint_was_given_up():
    newcomers = one(first_round=7)
    newcomers.saving(8)
    newcomers.given_up([8])
    assert newcomers.written(8) == []
    assert newcomers.wait_for(9)


def test_after_a_refusal_of_the_disk_it_waits_for_a_regular_checkpoint():
    newcomers = one(first_round=7)
    newcomers.saving(8)
    newcomers.refused()
    assert not newcomers.wait_for(9)
    newcomers.saving(12)
    assert newcomers.written(12) == ["b"]


def test_it_is_ready_when_all_its_stages_hold_the_anchor():
    newcomers = one(first_round=7)
    newcomers.holds("b.s1")
    newcomers.holds("a.s0")
    assert newcomers.ready == []
    newcomers.holds("b.s0")
    assert newcomers.ready == ["b"]
    newcomers.remove("b")
    assert newcomers.names == ()


def test_donors_are_looked_for_once_when_its_first_round_is_known():
    newcomers = one()
    newcomers.holds("b.s1")
    assert newcomers.resumed({"a.s0": 1, "b.s0": 7, "b.s1": 7}) == {"b": ("b.s0",)}
    assert newcomers.resumed({"a.s0": 1, "b.s0": 8, "b.s1": 8}) == {}


def test_no_round_is_saved_for_a_newcomer_that_has_donors():
    newcomers = Newcomers()
    newcomers.add("b", ["b.s0"])
    newcomers.resumed({"b.s0": 7})
    assert not newcomers.wait_for(8)
    newcomers.without_donors("b")
    assert newcomers.wait_for(8)
