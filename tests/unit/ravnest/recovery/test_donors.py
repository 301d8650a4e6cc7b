"""Who gives what to stages that join."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from ravnest.recovery import Donors, Giver, Need

MB = 1e6
GIVERS = {"a.s0": Giver("fast", 4 * MB), "b.s0": Giver("slow", 1 * MB), "c.s0": Giver("home", 1 * MB)}
ALL = {0: ["a.s0", "b.s0", "c.s0"], 1: ["a.s0", "b.s0"]}


def donors(**rings):
    made = Donors({0: 10 * MB, 1: 10 * MB})
    for stage, (node, needs) in rings.items():
        made.need(f"{stage}.s0", node, needs, 0.0)
    return made


def test_many_that_join_are_spread_over_the_uplinks():
    made = donors(**{f"n{i}": (f"node{i}", [0]) for i in range(12)})
    chosen, helpless = made.choose(ALL, GIVERS)
    assert helpless == []
    assert Counter(chosen.values()) == {"a.s0": 8, "b.s0": 2, "c.s0": 2}


def test_what_lies_on_the_same_node_is_nearest():
    made = donors(n=("home", [0]), o=("far", [0]))
    chosen, _ = made.choose(ALL, {**GIVERS, "a.s0": Giver("fast", 1.0)})
    assert chosen[Need("n.s0", 0)] == "c.s0"


def test_after_a_failure_another_is_asked_and_none_twice():
    made = donors(n=("far", [0]))
    seen = []
    for _ in range(3):
        chosen, helpless = made.choose(ALL, GIVERS)
        assert helpless == []
        seen.append(chosen[Need("n.s0", 0)])
        made.failed(Need("n.s0", 0), seen[-1])
    assert sorted(seen) == sorted(GIVERS)
    assert made.choose(ALL, GIVERS) == ({}, ["n.s0"])
    assert not made.waiting


def test_who_is_lost_is_replaced_and_late_news_of_it_has_no_effect():
    made = donors(n=("far", [0, 1]))
    first, _ = made.choose(ALL, GIVERS)
    assert set(first.values()) == {"a.s0"}
    made.gone(["a.s0"])
    made.taken(Need("n.s0", 0), "a.s0", 5)
    left = {name: giver for name, giver in GIVERS.items() if name != "a.s0"}
    again, _ = made.choose(ALL, left)
    assert again == {Need("n.s0", 0): "c.s0", Need("n.s0", 1): "b.s0"}
    for need, donor in again.items():
        made.taken(need, donor, 7)
    restored = made.holds("n.s0", 9.0)
    assert restored.donors == {"b.s0": 7, "c.s0": 7}
    assert restored.seconds == 9.0


def test_what_has_become_useless_may_come_from_the_same_donor_again():
    made = donors(n=("far", [1]))
    made.choose(ALL, GIVERS)
    made.taken(Need("n.s0", 1), "a.s0", 7)
    made.failed(Need("n.s0", 1), "")
    assert made.choose(ALL, GIVERS)[0] == {Need("n.s0", 1): "a.s0"}


EVENTS = st.lists(
    st.tuples(st.sampled_from(["taken", "failed", "gone", "choose"]), st.integers(0, 3), st.integers(0, 1)),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(EVENTS)
def test_any_history_ends_with_all_segments_or_with_the_checkpoint(events):
    """Nobody waits for ever: at each moment every segment that is missing has a living donor, or its stage is told to
    be helpless."""
    made, living = donors(n=("far", [0, 1]), o=("home", [0])), dict(GIVERS)
    on_the_way, helped = {}, {"n.s0", "o.s0"}
    got = {"n.s0": set(), "o.s0": set()}
    for what, which, ring in [*events, ("choose", 0, 0)]:
        donor, stage = sorted(GIVERS)[which % 3], ("n.s0", "o.s0")[which % 2]
        need = Need(stage, ring)
        if what == "taken" and need in on_the_way:
            made.taken(need, on_the_way.pop(need), 1)
            got[stage].add(ring)
        elif what == "failed" and need in on_the_way:
            made.failed(need, on_the_way.pop(need))
        elif what == "gone":
            living.pop(donor, None)
            made.gone([donor])
            on_the_way = {each: by for each, by in on_the_way.items() if by != donor}
        elif what == "choose":
            chosen, helpless = made.choose(ALL, living)
            helped -= set(helpless)
            on_the_way |= chosen
            on_the_way = {each: by for each, by in on_the_way.items() if each.stage in helped}
            assert all(by in living for by in on_the_way.values())
    for stage, rings in (("n.s0", {0, 1}), ("o.s0", {0})):
        waiting = {each.ring for each in on_the_way if each.stage == stage}
        assert stage not in helped or waiting | got[stage] >= rings
