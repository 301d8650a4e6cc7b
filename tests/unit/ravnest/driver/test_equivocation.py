"""Who is judged to have sent some of the others something else, and who only may have."""

import random

import pytest

from ravnest.driver.equivocation import LEAST_MEMBERS, Equivocation


def everyone(count, **told):
    """What `count` members tell of each other: digests alike, but for `told` ("a_of_b": what a tells of b)."""
    names = "abcdefghijkl"[:count]
    return {teller: {member: (told.get(f"{teller}_of_{member}", "same"),) for member in names} for teller in names}


def judged(told, members=None, odds=None):
    odds = odds or Equivocation(lambda member: member)
    return {v.member: v.proven for v in odds.judge(told, len(told) if members is None else members)}


def test_nobody_leaves_where_all_tell_the_same():
    assert judged(everyone(8)) == {}


def test_who_sends_everybody_something_else_is_proven_to():
    assert judged(everyone(5, **{f"{each}_of_b": each for each in "abcde"})) == {"b": True}
    assert judged(everyone(6, **{f"{each}_of_b": "other" for each in "def"})) == {"b": True}


def test_who_says_something_else_of_itself_than_all_have_got_is_proven_to_lie():
    assert judged(everyone(5, b_of_b="other")) == {"b": True}


def test_one_against_one_is_in_doubt_and_the_one_in_the_minority_leaves():
    assert judged(everyone(5, d_of_b="other")) == {"d": False}


def test_who_is_at_odds_with_more_than_can_lie_is_proven_to():
    assert judged(everyone(8, a_of_b="other", c_of_b="other", d_of_b="other")) == {"a": False, "c": False, "d": False}
    odds = Equivocation(lambda member: member)
    for teller in "acd":
        assert judged(everyone(8, **{f"{teller}_of_b": "other"}), odds=odds) == {teller: False}
    assert judged(everyone(8, e_of_b="other"), odds=odds) == {"b": True}


def test_a_member_that_belies_the_others_is_found_and_harms_nobody():
    assert judged(everyone(7, **{f"g_of_{each}": "other" for each in "abcd"})) == {"g": True}


def test_what_is_known_of_odds_is_not_forgotten_as_members_leave():
    """Otherwise three liars of eight could each belie one member, leave, and have it proven among the five others."""
    odds = Equivocation(lambda member: member)
    for teller in "fgh":
        assert judged(everyone(8, **{f"{teller}_of_a": "other"}), odds=odds) == {teller: False}
    assert judged(everyone(5), odds=odds) == {}
    assert judged(everyone(5, e_of_b="other"), odds=odds) == {"e": False}


@pytest.mark.parametrize("members", range(1, LEAST_MEMBERS))
def test_too_few_are_not_judged(members):
    assert judged(everyone(members, a_of_a="other")) == {}


def test_where_some_have_not_told_less_is_proven():
    told = everyone(8, e_of_b="other", f_of_b="other")
    few = {name: told[name] for name in "defg"}
    assert judged(few, members=8) == {}
    most = {name: told[name] for name in "acdefg"}
    assert judged(most, members=8) == {}  # four of eight are no majority
    assert judged({**most, "h": told["h"]}, members=8) == {"e": False, "f": False}


def test_who_tells_nothing_and_sends_everybody_something_else_leaves_unproven():
    told = everyone(6, **{f"{each}_of_b": each for each in "acdef"})
    del told["b"]
    assert judged(told, members=6) == {"b": False}


def test_clusters_are_judged_and_not_their_stages():
    odds = Equivocation(lambda member: member[0])
    told = {f"{each}.s{n}": {f"{one}.s{n}": ("same",) for one in "abcde"} for each in "abcde" for n in (0, 1)}
    for stage in (0, 1):
        ring = {name: of for name, of in told.items() if name.endswith(str(stage))}
        ring[f"d.s{stage}"] = {**ring[f"d.s{stage}"], f"b.s{stage}": ("other",)}
        assert judged(ring, odds=odds) == {f"d.s{stage}": False}  # the same two again prove no more


@pytest.mark.parametrize("seed", range(40))
def test_no_honest_member_is_ever_proven_to_lie(seed):
    """Fewer than half lie as they like, in what they send and tell, over 20 rounds in which those that are proven to
    lie stay out."""
    chance = random.Random(seed)
    names = "abcdefghi"[: chance.randint(LEAST_MEMBERS, 9)]
    liars = set(chance.sample(names, (len(names) - 1) // 2))
    odds, out = Equivocation(lambda member: member), set()
    for _ in range(20):
        here = [name for name in names if name not in out]
        sent = {(m, to): chance.choice("xyz") if m in liars and m != to else "x" for m in here for to in here}
        told = {
            teller: {m: (chance.choice("xyz") if teller in liars else sent[m, teller],) for m in here}
            for teller in here
        }
        out |= {verdict.member for verdict in odds.judge(told, len(here)) if verdict.proven}
    assert out <= liars
    assert out or not liars or len(names) < LEAST_MEMBERS


def test_of_a_member_and_one_that_refuses_what_it_gave_the_first_leaves_until_it_is_known_who_lies():
    odds = Equivocation(lambda member: member)
    told = [odds.refused("a", teller, "NaN", 8) for teller in "bcdef"]
    found = [(v.member, v.proven) for verdicts in told for v in verdicts]
    assert found == [*[("a", False)] * 3, ("a", True), ("a", True)]
    assert "NaN" in told[0][0].reason

    accuser = Equivocation(lambda member: member)
    said = [accuser.refused(member, "h", "NaN", 8) for member in "abcd"]
    assert [(v.member, v.proven) for verdicts in said for v in verdicts] == [
        *(("a", False), ("b", False), ("c", False)),
        ("h", True),
    ]
    assert [(v.member, v.proven) for v in Equivocation(str).refused("a", "b", "NaN", 3)] == [("a", False)]
