"""Steps whose gradient several machines add up: what the owner of the step does before and instead of a commit."""

import pytest

from ravnest.collaboration.promises import FIRST_PATIENCE_S
from ravnest.collaboration.step_events import (
    BegunAgain,
    CollectOn,
    CommitStep,
    ContributionCame,
    MakeMeans,
    MeansMade,
    OpenStep,
    PeerBecameReady,
    PeerLeft,
    ProgressCame,
    TimePassed,
)
from ravnest.collaboration.step_owner import StepOwner


def opened_with(*peers: str, delayed: bool = False) -> StepOwner:
    """An owner whose step is open, each of the peers having been asked for an equal part of 100 samples."""
    owner = StepOwner(100, delayed=delayed)
    for peer in peers:
        owner.handle(PeerBecameReady(peer, 0), 0.0)
    found = [owner.handle(ProgressCame(peer, 0, 100 // len(peers), 10.0, 10, 10.0), 1.0) for peer in peers]
    assert isinstance(found[-1][0], OpenStep)
    owner.in_parts = True
    return owner


@pytest.mark.parametrize("delayed", [False, True])
def test_a_step_in_parts_is_committed_once_all_means_are_there(delayed: bool) -> None:
    owner = opened_with("a", "b", delayed=delayed)
    owner.handle(ContributionCame("a", 0, 50), 2.0)
    assert owner.handle(ContributionCame("b", 0, 50), 3.0) == [MakeMeans(0, {"a": 50, "b": 50})]
    assert not owner.counts("a", 0, 10)
    assert owner.handle(TimePassed(), 1e6) == []
    assert owner.next_due_s(1e6) is None
    assert owner.handle(MeansMade(), 4.0)[0] == CommitStep(0, {"a": 50, "b": 50})
    assert owner.step == 1
    assert not owner.in_parts


def test_what_was_given_is_awaited_again_when_a_part_is_lost() -> None:
    owner = opened_with("a", "b")
    owner.handle(ContributionCame("a", 0, 50), 2.0)
    assert owner.handle(BegunAgain(), 10.0) == []
    assert not owner.in_parts
    assert owner.needed == 100
    assert owner.handle(ContributionCame("b", 0, 50), 12.0) == []
    assert owner.handle(ContributionCame("a", 0, 50), 13.0) == [CommitStep(0, {"a": 50, "b": 50})]


def test_a_lost_mean_begins_the_step_again_with_those_who_are_there() -> None:
    owner = opened_with("a", "b")
    for peer in "ab":
        owner.handle(ContributionCame(peer, 0, 50), 2.0)
    owner.handle(PeerLeft("b"), 2.5)
    assert owner.handle(BegunAgain(), 3.0) == []
    assert owner.open
    assert owner.handle(ContributionCame("a", 0, 50), 4.0) == [CollectOn(0)]  # what b had given is gone with it


def test_what_was_given_comes_again_once_and_counts_once() -> None:
    owner = opened_with("a", "b")
    owner.handle(ContributionCame("a", 0, 50), 2.0)
    owner.handle(BegunAgain(), 3.0)
    assert owner.counts("a", 0, 10)
    owner.handle(ContributionCame("a", 0, 50), 4.0)
    assert not owner.counts("a", 0, 10)
    assert owner.needed == 50


def test_who_does_not_send_again_is_waited_for_as_ever() -> None:
    owner = opened_with("a", "b")
    owner.handle(ContributionCame("a", 0, 50), 2.0)
    owner.handle(BegunAgain(), 3.0)
    due_s = owner.next_due_s(3.0)
    assert due_s is not None
    assert 3.0 < due_s <= 3.0 + FIRST_PATIENCE_S
    assert owner.handle(TimePassed(), due_s) == [CollectOn(0)]


def test_while_a_step_is_collected_what_was_given_only_counts_no_more() -> None:
    owner = opened_with("a", "b")
    owner.handle(ContributionCame("a", 0, 50), 2.0)
    owner.handle(PeerLeft("b"), 2.5)
    assert not owner.open
    owner.handle(BegunAgain(), 3.0)
    assert not owner.open
    assert owner.needed == 100


def test_a_word_about_means_that_nobody_makes_changes_nothing() -> None:
    owner = opened_with("a", "b")
    assert owner.handle(MeansMade(), 2.0) == []
    assert owner.step == 0


def test_what_nobody_asked_for_counts_no_more_where_all_that_was_given_comes_again() -> None:
    owner = StepOwner(96)
    for peer in "abd":
        owner.handle(PeerBecameReady(peer, 0), 0.0)
    for peer, samples in (("a", 48), ("b", 40)):
        owner.handle(ProgressCame(peer, 0, samples, 8.0, 8, 2.0), 0.0)
    owner.handle(TimePassed(), 0.5)
    assert owner.open
    owner.in_parts = True
    owner.handle(ContributionCame("a", 0, 48), 1.0)
    assert not owner.counts("d", 0, 48)
    owner.handle(BegunAgain(), 2.0)
    assert not owner.counts("d", 0, 48)
    assert owner.counts("a", 0, 48)
