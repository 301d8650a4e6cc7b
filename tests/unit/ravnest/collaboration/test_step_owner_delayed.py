"""Delayed steps: what the owner of the step does while peers compute the next batch."""

import pytest

from ravnest.collaboration.step_events import (
    CollectOn,
    CommitStep,
    ContributionCame,
    OpenStep,
    PeerBecameReady,
    PeerLeft,
    ProgressCame,
    TimePassed,
)
from ravnest.collaboration.step_owner import StepOwner


def progress(peer: str, samples: int, rate: float = 10.0, step: int = 0) -> ProgressCame:
    return ProgressCame(peer, step, samples, rate, 10, 10.0)


def delayed_owner(*peers: str, target: int = 100) -> StepOwner:
    owner = StepOwner(target, delayed=True)
    for peer in peers:
        owner.handle(PeerBecameReady(peer, 0), 0.0)
    return owner


def opened_with_two(owner: StepOwner) -> OpenStep:
    owner.handle(progress("a", 40), 1.0)
    (opened,) = owner.handle(progress("b", 50, rate=30.0), 1.0)
    assert isinstance(opened, OpenStep)
    return opened


def test_who_is_silent_is_waited_for_no_longer_where_a_step_was_opened_long_before_its_batch_is_made() -> None:
    owner, now_s = delayed_owner("a", "b"), 1.0
    (opened,) = [owner.handle(ProgressCame(peer, 0, 50, 1.0, 1, 10.0), now_s) for peer in ("a", "b")][-1]
    owner.averages_take_s = 100.0  # so all steps open with the commit of the one before
    for step in range(5):
        assert isinstance(opened, OpenStep)
        now_s += 1.0 if not step else 50.0  # a second after the batch was to be made
        given = [ContributionCame(peer, step, opened.stops[peer]) for peer in ("a", "b")]
        committed, opened = [owner.handle(one, now_s) for one in given][-1]
        assert isinstance(committed, CommitStep)
    assert owner.patience_s <= 48.0, "24 s, and the average beside it"
    due_s = owner.next_due_s(now_s)
    assert due_s is not None
    assert due_s >= now_s + 45.0, "they compute until then"


def test_with_the_opening_of_a_delayed_step_each_is_told_its_part_of_the_next_batch() -> None:
    opened = opened_with_two(delayed_owner("a", "b"))
    assert 100 <= sum(opened.most_next.values()) <= 105
    assert opened.most_next["b"] > opened.most_next["a"]


def test_who_was_slow_once_is_tried_again_in_delayed_steps() -> None:
    """Its part of the next batch is a micro-batch at least: else nobody would hear that it is as fast as the others."""
    owner = delayed_owner("a", "b", "once slow")
    for peer, samples, rate in (("once slow", 0, 10.0), ("a", 40, 2000.0), ("b", 60, 2000.0)):
        found = owner.handle(progress(peer, samples, rate=rate), 1.0)
    (opened,) = found
    assert isinstance(opened, OpenStep)
    assert opened.most_next["once slow"] == 10
    assert sum(opened.most_next.values()) <= 110


@pytest.mark.parametrize("rates", [(20.0, 0.0), (20.0, 0.0, 0.0, 0.0), (500.0, 20.0, 20.0, 20.0, 20.0)])
def test_nobody_computes_the_next_batch_without_a_bound(rates: tuple[float, ...]) -> None:
    """Not who has no rate yet, nor where most have begun no micro-batch by the time that all together need."""
    peers = [f"v{at}" for at in range(len(rates))]
    owner = delayed_owner(*peers)
    for peer, rate in list(zip(peers, rates, strict=True))[1:]:
        assert owner.handle(progress(peer, 0, rate=rate), 1.0) == []
    (opened,) = owner.handle(progress(peers[0], 100, rate=rates[0]), 1.0)
    assert isinstance(opened, OpenStep)
    assert opened.most_next.keys() == set(peers)
    assert 100 <= sum(opened.most_next.values()) <= 110


def test_a_delayed_step_opens_at_the_commit_where_the_word_to_stop_would_come_too_late_behind_its_average() -> None:
    def opens(averages_take_s: float, given_s: float, *joiners: str) -> bool:
        owner = delayed_owner("a", "b")
        opened = opened_with_two(owner)
        for peer in joiners:
            owner.handle(PeerBecameReady(peer, 1), 1.1)
        owner.averages_take_s = averages_take_s
        for peer in ("a", "b"):
            owner.handle(ContributionCame(peer, 0, opened.stops[peer]), given_s)
        assert owner.step == 1
        return owner.open

    # Opened at 1 s, a batch takes 2.5 s by their rates, and a step is opened a second ahead in any case.
    assert not opens(0.1, 1.2)
    assert opens(0.0, 1.2), "no average was on its way yet: nobody knows how late the word would be"
    assert opens(1.5, 1.2), "the average takes until then"
    assert opens(0.1, 2.0), "so does what was given"
    assert not opens(0.5, 1.2)
    assert opens(2.5, 1.2, "c"), "who has just joined has said nothing yet"


def test_a_delayed_step_opens_with_the_commit_of_the_one_before_where_its_batch_is_full_by_then() -> None:
    owner = delayed_owner("a", "b")
    opened = opened_with_two(owner)
    for peer, samples in opened.most_next.items():
        owner.handle(PeerBecameReady(peer, 1), 2.0)
        owner.handle(progress(peer, samples, rate=30.0, step=1), 2.0)
    owner.handle(ContributionCame("a", 0, opened.stops["a"]), 30.0)
    committed, again = owner.handle(ContributionCame("b", 0, opened.stops["b"]), 30.0)
    assert isinstance(committed, CommitStep)
    assert isinstance(again, OpenStep)
    assert again.step == 1
    assert again.stops == opened.most_next, "nobody is taken to have computed more than it was told"


def test_a_delayed_step_opens_by_rates_where_reports_are_still_behind_contributions_on_a_slow_link() -> None:
    owner = delayed_owner("a", "b")
    opened = opened_with_two(owner)
    owner.handle(ContributionCame("a", 0, opened.stops["a"]), 100.0)
    committed, again = owner.handle(ContributionCame("b", 0, opened.stops["b"]), 100.0)
    assert isinstance(committed, CommitStep)
    assert isinstance(again, OpenStep)
    assert again.stops == opened.most_next


def test_a_delayed_step_that_is_not_full_at_the_commit_goes_on_without_a_bound() -> None:
    owner = delayed_owner("a", "b")
    opened = opened_with_two(owner)
    owner.handle(progress("a", 10, step=1), 2.0)
    owner.handle(progress("b", 10, step=1), 2.0)
    owner.averages_take_s = 0.1
    owner.handle(ContributionCame("a", 0, opened.stops["a"]), 2.1)
    found = owner.handle(ContributionCame("b", 0, opened.stops["b"]), 2.1)
    assert found == [CommitStep(0, opened.stops), CollectOn(1)]
    owner.handle(PeerLeft("a"), 2.2)
    due_s = owner.next_due_s(2.2)
    assert due_s is not None, "the one that is left fills the batch by itself"
    (again,) = owner.handle(TimePassed(), due_s + 0.1)
    assert isinstance(again, OpenStep)
    assert again.stops == {"b": 100}


def test_what_is_missing_of_a_delayed_step_is_asked_of_no_more_than_are_needed_for_it() -> None:
    peers = ["a", "b", "c", "d", "lost"]
    owner = delayed_owner(*peers)
    for peer in peers:
        found = owner.handle(progress(peer, 10, rate=10.0), 1.0)
    (opened,) = found
    assert opened == OpenStep(0, dict.fromkeys(peers, 20), dict.fromkeys(peers, 20))
    for peer in peers[:4]:
        owner.handle(ContributionCame(peer, 0, 20), 2.0)
        owner.handle(progress(peer, 20, rate=10.0, step=1), 4.0)
    assert owner.handle(PeerLeft("lost"), 5.0) == [CollectOn(0, "a"), OpenStep(0, {"a": 20})]
    assert owner.counts("a", 0, 20)
    assert not owner.counts("b", 0, 20), "it was told once, and has given that"
    committed, again = owner.handle(ContributionCame("a", 0, 20), 6.0)
    assert committed == CommitStep(0, {"a": 40, "b": 20, "c": 20, "d": 20})
    assert isinstance(again, OpenStep)
    assert 100 <= sum(again.stops.values()) <= 110, "what the others have is of the next batch still"


def test_who_has_too_little_of_the_next_batch_makes_what_is_left_of_a_delayed_step() -> None:
    owner = delayed_owner("a", "b")
    opened = opened_with_two(owner)
    owner.handle(progress("a", 10, step=1), 2.0)
    owner.handle(ContributionCame("a", 0, opened.stops["a"]), 2.1)
    missing = 100 - opened.stops["a"]
    assert owner.handle(PeerLeft("b"), 2.2) == [CollectOn(0, "a"), OpenStep(0, {"a": missing})]
    assert owner.handle(ContributionCame("a", 0, missing), 9.0)[0] == CommitStep(0, {"a": 100})


def test_a_delayed_step_of_which_nobody_has_more_is_collected_further() -> None:
    owner = delayed_owner("a", "b")
    opened = opened_with_two(owner)
    owner.handle(ContributionCame("a", 0, opened.stops["a"]), 1.5)
    assert owner.handle(PeerLeft("b"), 1.6) == [CollectOn(0)]
    (again,) = owner.handle(progress("a", 100 - opened.stops["a"], step=0), 3.0)
    assert isinstance(again, OpenStep)
    assert again.step == 0
    assert owner.handle(ContributionCame("a", 0, 100 - opened.stops["a"]), 4.0)[0] == CommitStep(0, {"a": 100})


def test_who_is_doubted_computes_a_micro_batch_of_the_next_batch_and_is_not_asked_where_others_make_it() -> None:
    owner = delayed_owner("a", "b", "slow", target=120)
    for peer in ("a", "b", "slow"):
        owner.handle(progress(peer, 40, rate=10.0), 1.0)
    for peer in ("a", "b"):
        owner.handle(ContributionCame(peer, 0, 40), 2.0)
        owner.handle(progress(peer, 40, rate=10.0, step=1), 4.0)
    now_s = 1.0 + owner.patience_s
    found = owner.handle(TimePassed(), now_s)
    assert found == [CollectOn(0, "a"), OpenStep(0, {"a": 40})]
    owner.handle(progress("slow", 40, rate=10.0, step=1), now_s)
    committed, opened = owner.handle(ContributionCame("a", 0, 40), now_s)
    assert isinstance(committed, CommitStep)
    assert isinstance(opened, OpenStep)
    assert opened.stops == {"a": 40, "b": 80, "slow": 0}, "it is not asked by itself where others make the batch"
    assert opened.most_next["slow"] == 10


def test_what_comes_too_late_counts_where_others_do_not_make_up_for_it_already() -> None:
    owner = delayed_owner("a", "b", "late", target=120)
    for peer in ("a", "b", "late"):
        owner.handle(progress(peer, 40, rate=10.0), 1.0)
    for peer in ("a", "b"):
        owner.handle(ContributionCame(peer, 0, 40), 2.0)
    assert owner.counts("late", 0, 40)
    owner.handle(progress("a", 40, rate=10.0, step=1), 6.0)
    owner.handle(TimePassed(), 1.0 + owner.patience_s)
    assert not owner.counts("late", 0, 30), "a makes up for it"
    assert owner.counts("late", 0, 40), "with it the batch is whole, and a need not send"
    assert owner.counts("a", 0, 40)
    owner.handle(PeerLeft("a"), 20.0)
    assert owner.counts("late", 0, 40), "it is needed now"


def test_while_an_average_travels_contributions_may_take_longer_and_at_most_twice_as_long() -> None:
    usual_s = delayed_owner().patience_s
    for averages_take_s, more_s in ((3.0, 3.0), (1e6, usual_s), (0.0, 0.0)):
        owner = delayed_owner("a", "b")
        owner.averages_take_s = averages_take_s
        opened_with_two(owner)
        owner.averages_take_s = 50.0  # who is lost does not take the next one
        assert owner.patience_s == usual_s + more_s
    owner = delayed_owner("a", "b")
    opened = opened_with_two(owner)
    for peer in ("a", "b"):
        owner.handle(ContributionCame(peer, 0, opened.stops[peer]), 3.0)
    assert owner.step == 1
    assert owner.open
    assert owner.patience_s == 16.0, "nobody knows how long the first average takes"


def test_a_part_of_the_next_batch_that_somebody_lost_is_made_by_others_before_the_average_comes() -> None:
    owner = delayed_owner("a", "b")
    opened = opened_with_two(owner)
    owner.averages_take_s = 5.0
    for peer in ("a", "b"):
        owner.handle(progress(peer, opened.most_next[peer], rate=30.0, step=1), 2.0)
    owner.handle(ContributionCame("b", 0, opened.stops["b"]), 2.1)
    owner.handle(PeerLeft("b"), 2.2)
    committed, again = owner.handle(ContributionCame("a", 0, opened.stops["a"]), 2.3)
    assert isinstance(committed, CommitStep)
    assert isinstance(again, OpenStep), "it may compute no more than its part until it is told"
    assert again.stops == {"a": 100}


def test_what_comes_late_and_is_a_whole_batch_is_committed_and_nobody_makes_up_for_it_any_more() -> None:
    owner = delayed_owner("fast", "slow", target=100)
    owner.handle(progress("slow", 0, rate=2.0), 1.0)
    assert owner.handle(progress("fast", 100, rate=50.0), 1.0) != []
    owner.handle(progress("slow", 10, rate=2.0, step=1), 2.0)
    now_s = 1.0 + owner.patience_s
    assert owner.handle(TimePassed(), now_s) == [CollectOn(0, "slow"), OpenStep(0, {"slow": 100})]
    assert not owner.counts("fast", 0, 50), "it is not the whole batch"
    assert owner.counts("fast", 0, 100)
    committed, *_ = owner.handle(ContributionCame("fast", 0, 100), now_s + 1.0)
    assert committed == CommitStep(0, {"fast": 100})
    assert not owner.counts("slow", 0, 100)
