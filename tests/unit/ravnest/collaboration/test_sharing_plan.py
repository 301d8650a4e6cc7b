import pytest
import torch

from ravnest.collaboration.packing import Packing
from ravnest.collaboration.sharing_plan import JUDGED, Link, Outcome, planned, relays_pay
from ravnest.collaboration.transfers import Form

ELEMENTS = 1000 * 65_536
PACKING = Packing([Form("gradients", torch.float32, ELEMENTS, "float16"), Form("statistics", torch.float32, 0)])
FAST, SLOW = Link(12.5e6, 12.5e6), Link(1.25e6, 1.25e6)


def shares_of(own: Link, helpers: list[Link], volunteers: int = 8) -> list[float] | None:
    found = planned(PACKING, own, helpers, volunteers)
    if found is None:
        return None
    division, named = found
    shares = [0.0] * (1 + len(helpers))
    for part, machine in enumerate((0, *named)):
        span = division.span(part)
        shares[machine] = (span.stop - span.start) / ELEMENTS
    return shares


def test_machines_with_equal_links_have_equal_shares() -> None:
    assert shares_of(FAST, [FAST]) == pytest.approx([0.5, 0.5], abs=0.002)
    assert shares_of(FAST, [FAST, FAST]) == pytest.approx([1 / 3] * 3, abs=0.002)


def test_a_faster_machine_has_the_larger_share_and_a_slow_one_none() -> None:
    assert shares_of(FAST, [Link(37.5e6, 37.5e6)]) == pytest.approx([0.2, 0.8], abs=0.005)
    assert shares_of(FAST, [SLOW]) is None
    assert shares_of(FAST, [SLOW, FAST]) == pytest.approx([0.5, 0.0, 0.5], abs=0.002)


def test_a_helper_of_which_nothing_is_known_is_taken_to_be_as_fast() -> None:
    assert shares_of(FAST, [Link()]) == pytest.approx([0.5, 0.5], abs=0.002)
    assert shares_of(Link(), [FAST]) is None


def test_one_volunteer_or_no_helper_has_nothing_to_share() -> None:
    assert shares_of(FAST, [FAST], volunteers=1) is None
    assert shares_of(FAST, []) is None


def test_ranges_change_where_links_have_changed_by_much() -> None:
    found = planned(PACKING, FAST, [FAST], 8)
    assert found is not None
    assert planned(PACKING, FAST, [FAST], 8, found) is None
    assert planned(PACKING, FAST, [Link(11e6, 11e6)], 8, found) is None
    slower = planned(PACKING, FAST, [Link(4e6, 4e6)], 8, found)
    assert slower is not None
    assert slower[0].bounds[0] > 0.6 * ELEMENTS


def test_shares_pay_while_few_volunteers_reach_this_machine_alone() -> None:
    found = planned(PACKING, FAST, [FAST], 8)
    assert found is not None
    pays = [relays_pay(FAST, [Link()], found[0], 8, relayed) for relayed in range(9)]
    # 9 vectors by one machine; half of them, and a whole one for each whose parts are handed on, by two.
    assert pays == [True] * 5 + [False] * 4
    assert not relays_pay(FAST, [SLOW], found[0], 8, 0)


def test_five_hundred_volunteers_are_planned_for() -> None:
    assert shares_of(FAST, [FAST], volunteers=500) == pytest.approx([0.5, 0.5], abs=0.002)


def test_an_epoch_gains_unless_its_first_steps_are_not_shorter_than_those_before() -> None:
    outcome = Outcome()
    for _ in range(JUDGED):
        outcome.step_took(10.0, shared=False)
    outcome.epoch_begins()
    for _ in range(JUDGED - 1):
        outcome.step_took(11.0, shared=True)
        assert outcome.gains
    outcome.step_took(11.0, shared=True)
    assert not outcome.gains
    outcome.epoch_begins()
    for seconds in (30.0, 6.0, 6.0, 50.0, 50.0, 50.0):  # one long step is no judgement, nor are later ones
        outcome.step_took(seconds, shared=True)
    assert outcome.gains
