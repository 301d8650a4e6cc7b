import random

import pytest

from ravnest.collaboration.promises import FIRST_PATIENCE_S
from ravnest.collaboration.step_owner import (
    CollectOn,
    CommitStep,
    ContributionCame,
    ContributionRefused,
    Instruction,
    OpenStep,
    PeerBecameReady,
    PeerLeft,
    ProgressCame,
    PutOut,
    StepOwner,
    TimePassed,
)


def progress(peer: str, samples: int, rate: float = 10.0, step: int = 0) -> ProgressCame:
    return ProgressCame(peer, step, samples, rate, 10, 10.0)


def owner_of(*peers: str, target: int = 100) -> StepOwner:
    owner = StepOwner(target)
    for peer in peers:
        assert owner.handle(PeerBecameReady(peer, 0), 0.0) == []
    return owner


def test_a_step_opens_when_the_batch_is_full_and_is_committed_when_all_has_come() -> None:
    owner = owner_of("a", "b")
    assert owner.handle(progress("a", 40), 1.0) == []
    (opened,) = owner.handle(progress("b", 50), 1.0)
    assert opened == OpenStep(0, {"a": 50, "b": 50})
    assert owner.handle(ContributionCame("a", 0, 50), 2.0) == []
    assert owner.handle(ContributionCame("b", 0, 50), 3.0) == [CommitStep(0, {"a": 50, "b": 50})]
    assert owner.step == 1
    assert not owner.open


def test_a_step_opens_by_the_clock_without_another_report() -> None:
    owner = owner_of("a")
    assert owner.handle(progress("a", 0), 0.0) == []
    due_s = owner.next_due_s(0.0)
    assert due_s is not None
    assert 7.9 < due_s < 8.1  # a second before the last micro-batch begins that is needed
    assert owner.handle(TimePassed(), due_s + 0.02) == [OpenStep(0, {"a": 100})]


def test_a_step_is_not_opened_ahead_while_somebody_has_not_said_how_far_it_is() -> None:
    owner = owner_of("a", "b")
    assert owner.handle(progress("a", 0, rate=500.0), 0.0) == []
    (opened,) = owner.handle(progress("b", 0, rate=500.0), 0.01)
    assert isinstance(opened, OpenStep)
    assert sum(opened.stops.values()) == 100
    assert min(opened.stops.values()) >= 40


def test_short_steps_are_opened_with_the_commit_of_the_one_before_and_meet_the_batch() -> None:
    owner = owner_of("fast", "slow", "new", target=200)
    rates = {"fast": 3000.0, "slow": 1000.0, "new": 0.0}
    for peer, rate in rates.items():
        found = owner.handle(progress(peer, 0, rate=rate), 0.0)
    for step in range(5):
        opened = found[-1]
        assert isinstance(opened, OpenStep)
        assert opened.step == step
        assert 200 <= sum(opened.stops.values()) <= 220
        assert opened.stops["fast"] > opened.stops["slow"]
        assert (opened.stops["new"] > 0) == (step > 0)  # it gets a rate by one micro-batch
        for peer, samples in opened.stops.items():
            owner.handle(progress(peer, 0, rate=rates[peer] or 1000.0 * step, step=step), step + 0.1)
            if samples:
                found = owner.handle(ContributionCame(peer, step, samples), step + 0.2)


def test_who_was_slow_once_is_tried_again_in_short_steps() -> None:
    """Its first micro-batch took a second, of which none since would take longer than the others'."""
    owner = owner_of("a", "b", "once slow")
    rates = {"a": 2000.0, "b": 2000.0, "once slow": 10.0}
    for peer, rate in rates.items():
        found = owner.handle(progress(peer, 0, rate=rate), 0.0)
    stops = []
    for step in range(4):
        opened = found[-1]
        assert isinstance(opened, OpenStep)
        assert sum(opened.stops.values()) <= 110
        stops.append(opened.stops["once slow"])
        for peer, samples in opened.stops.items():
            if samples:
                rate = 2000.0 if peer == "once slow" else rates[peer]
                owner.handle(progress(peer, samples, rate=rate, step=step), step + 0.1)
                found = owner.handle(ContributionCame(peer, step, samples), step + 0.2) or found
    assert stops[:3] == [0, 10, 10]  # its answer to the first trial comes when the step after it is open
    assert stops[3] > 10


def test_a_longer_step_is_not_opened_with_the_commit_of_the_one_before() -> None:
    owner = owner_of("a")
    owner.handle(progress("a", 100), 0.0)
    assert owner.handle(ContributionCame("a", 0, 100), 1.0) == [CommitStep(0, {"a": 100})]
    assert not owner.open


def test_who_is_doubted_can_keep_its_word_in_short_steps_too() -> None:
    owner = owner_of("honest", "slow")
    for peer in ("honest", "slow"):
        owner.handle(progress(peer, 50, rate=1000.0), 0.0)
    owner.handle(ContributionCame("honest", 0, 50), 0.1)
    now_s = owner.patience_s
    assert owner.handle(TimePassed(), now_s) == [CollectOn(0)]
    owner.handle(progress("honest", 50, rate=1000.0), now_s)
    (_, opened) = owner.handle(ContributionCame("honest", 0, 50), now_s)
    assert opened == OpenStep(1, {"honest": 100, "slow": 10})
    owner.handle(ContributionCame("slow", 1, 10), now_s)
    (_, opened) = owner.handle(ContributionCame("honest", 1, 100), now_s)
    owner.handle(ContributionCame("slow", 2, 10), now_s)
    (_, opened) = owner.handle(ContributionCame("honest", 2, 100), now_s)
    assert isinstance(opened, OpenStep)
    assert opened.stops["slow"] > 10


def test_a_peer_that_vanishes_costs_its_own_part() -> None:
    owner = owner_of("a", "b")
    owner.handle(progress("a", 50), 0.0)
    owner.handle(progress("b", 50), 0.0)
    owner.handle(ContributionCame("a", 0, 50), 1.0)
    assert owner.handle(PeerLeft("b"), 2.0) == [CollectOn(0)]
    assert owner.needed == 50
    assert owner.handle(progress("a", 40), 3.0) == [OpenStep(0, {"a": 50})]
    assert owner.handle(ContributionCame("a", 0, 50), 4.0) == [CommitStep(0, {"a": 100})]


def test_who_comes_while_a_step_is_open_is_told_once_to_wait_and_makes_the_batch_no_larger() -> None:
    owner = owner_of("a", "b")
    owner.handle(progress("a", 50), 0.0)
    owner.handle(progress("b", 50), 0.0)
    assert owner.handle(PeerBecameReady("new", 0), 1.0) == []
    assert owner.handle(progress("new", 0, rate=0.0), 1.0) == [OpenStep(0, {"new": 0})]
    assert owner.handle(progress("new", 10), 1.5) == []
    owner.handle(ContributionCame("a", 0, 50), 2.0)
    assert owner.handle(ContributionCame("new", 0, 10), 2.5) == []  # it had begun, and there is room
    assert owner.handle(PeerLeft("b"), 3.0) == [CollectOn(0)]
    assert owner.handle(progress("a", 20), 4.0) == []
    assert owner.handle(progress("new", 20), 4.0) == [OpenStep(0, {"a": 20, "new": 20})]
    owner.handle(ContributionCame("a", 0, 20), 5.0)
    assert owner.handle(ContributionCame("new", 0, 20), 5.0) == [CommitStep(0, {"a": 70, "new": 30})]


def test_a_late_peer_is_not_waited_for_beyond_patience() -> None:
    owner = owner_of("a", "b")
    owner.handle(progress("a", 100), 0.0)
    owner.handle(progress("b", 0), 0.0)
    assert owner.open
    owner = owner_of("a", "b", target=110)
    owner.handle(progress("b", 10), 0.0)
    owner.handle(progress("a", 90), 0.0)
    assert owner.handle(ContributionCame("a", 0, 110), 1.0) == []
    assert owner.handle(TimePassed(), 1.5) == []
    assert owner.next_due_s(1.5) == owner.patience_s
    assert owner.handle(TimePassed(), owner.patience_s) == [CommitStep(0, {"a": 110})]
    assert owner.handle(ContributionCame("b", 0, 10), 130.0) == []  # too late: nothing happens
    assert owner.needed == 110


def test_nobody_is_told_to_make_more_than_a_whole_batch() -> None:
    owner = owner_of("a", "b")
    owner.handle(progress("b", 0), 0.0)
    assert owner.handle(progress("a", 5000), 0.0) == [OpenStep(0, {"a": 100, "b": 0})]


def test_patience_follows_what_contributions_took() -> None:
    owner = owner_of("a")
    assert owner.patience_s == FIRST_PATIENCE_S
    owner.handle(progress("a", 100), 0.0)
    owner.handle(ContributionCame("a", 0, 100), 3.0)
    assert owner.patience_s == 12.0


def test_a_peer_that_lies_again_and_again_is_put_out() -> None:
    owner = owner_of("a", "liar")
    found: list[Instruction] = []
    for at in range(3):
        found += owner.handle(ContributionRefused("liar", "NaN"), float(at))
    assert found == [PutOut("liar", "NaN")]
    assert owner.peers == {"a"}


def test_what_is_said_about_another_step_changes_nothing() -> None:
    owner = owner_of("a")
    assert owner.handle(progress("a", 1000, step=7), 0.0) == []
    assert owner.handle(ContributionCame("a", 7, 1000), 0.0) == []
    assert owner.handle(PeerBecameReady("b", 7), 0.0) == []
    assert owner.needed == 100
    assert owner.peers == {"a"}


@pytest.mark.parametrize("seed", range(30))
def test_every_step_has_its_batch_and_ends_whatever_happens_to_the_peers(seed: int) -> None:
    """Peers join, compute, send late or never, lie and vanish, in any order: whoever stays gets every step."""
    draw = random.Random(seed)
    target, owner, now_s = 200, StepOwner(200), 0.0
    made: dict[str, int] = {}
    stops: dict[str, int] = {}
    commits: list[CommitStep] = []
    idle: set[str] = set()

    def carry_out(instructions: list[Instruction]) -> None:
        for one in instructions:
            match one:
                case OpenStep():
                    assert one.step == owner.step
                    stops.update({peer: stop for peer, stop in one.stops.items() if peer in made})
                case CollectOn(peer=None):
                    stops.clear()
                    idle.clear()
                case CollectOn(peer=str(peer)):
                    stops.pop(peer, None)
                    idle.discard(peer)
                case CommitStep():
                    assert sum(one.samples.values()) >= target
                    assert one.step == len(commits)
                    commits.append(one)
                    stops.clear()
                    idle.clear()
                    made.update(dict.fromkeys(made, 0))
                    for peer in list(made):
                        carry_out(owner.handle(progress(peer, 0, step=owner.step), now_s))
                case PutOut():
                    made.pop(one.peer, None)

    for turn in range(600):
        now_s += draw.uniform(0.0, 2.0)
        kind = draw.random()
        if (kind < 0.05 or not made) and len(made) < 6:
            name = f"p{turn}"
            made[name] = 0
            carry_out(owner.handle(PeerBecameReady(name, owner.step), now_s))
            if owner.open:
                idle.add(name)
        elif kind < 0.10 and len(made) > 1:
            gone = draw.choice(sorted(made))
            made.pop(gone)
            stops.pop(gone, None)
            carry_out(owner.handle(PeerLeft(gone), now_s))
        elif kind < 0.13:
            carry_out(owner.handle(ContributionRefused(draw.choice(sorted(made)), "NaN"), now_s))
        elif kind < 0.2:
            carry_out(owner.handle(TimePassed(), now_s))
        else:
            peer = draw.choice(sorted(made))
            if peer in idle:
                continue
            made[peer] += 10
            if peer in stops and made[peer] >= stops[peer]:
                samples, made[peer] = made[peer], 0
                idle.add(peer)
                carry_out(owner.handle(ContributionCame(peer, owner.step, samples), now_s))
            elif not owner.open:
                carry_out(owner.handle(progress(peer, made[peer], step=owner.step), now_s))
    # From here on nobody is lost: the step under way, and one more, come to their end.
    before = len(commits)
    for _ in range(400):
        now_s += 1.0
        carry_out(owner.handle(TimePassed(), now_s))
        for peer in sorted(made):
            if peer in idle:
                continue
            made[peer] += 10
            if peer in stops and made[peer] >= stops[peer]:
                samples, made[peer] = made[peer], 0
                idle.add(peer)
                carry_out(owner.handle(ContributionCame(peer, owner.step, samples), now_s))
            elif not owner.open:
                carry_out(owner.handle(progress(peer, made[peer], step=owner.step), now_s))
    assert not made or len(commits) >= before + 2


def test_who_promises_and_never_sends_holds_the_others_up_once_and_no_more() -> None:
    owner, now_s = owner_of("honest", "liar"), 0.0
    owner.handle(progress("honest", 40), now_s)
    assert owner.handle(progress("liar", 100), now_s) == [OpenStep(0, {"honest": 40, "liar": 100})]
    owner.handle(ContributionCame("honest", 0, 40), 1.0)
    now_s = owner.patience_s
    assert owner.handle(TimePassed(), now_s) == [CollectOn(0)]
    # From now on it alone is asked, once in a while, and the honest one is left to compute until it has the batch.
    for made in range(0, 60, 10):
        asked = owner.handle(progress("liar", 100), now_s) + owner.handle(progress("honest", made, rate=0.0), now_s)
        assert asked in ([], [OpenStep(0, {"liar": 100})])
        assert not owner.open
        now_s += 0.1
    (opened,) = owner.handle(progress("honest", 60, rate=0.0), now_s)
    assert opened == OpenStep(0, {"honest": 60, "liar": 0})
    assert owner.handle(ContributionCame("honest", 0, 60), now_s + 1.0) == [CommitStep(0, {"honest": 100})]


def test_who_sends_less_than_it_promised_is_doubted_too() -> None:
    owner = owner_of("honest", "liar")
    owner.handle(progress("honest", 0), 0.0)
    assert owner.handle(progress("liar", 100), 0.0) == [OpenStep(0, {"honest": 0, "liar": 100})]
    assert owner.handle(ContributionCame("liar", 0, 1), 0.1) == [CollectOn(0)]
    assert owner.handle(progress("honest", 10, rate=0.0), 0.2) == []
    assert owner.handle(progress("liar", 100), 0.2) == [OpenStep(0, {"liar": 100})]
    assert not owner.open


def test_who_is_doubted_is_asked_before_others_stop_and_is_counted_on_again_once_it_keeps_its_word() -> None:
    owner = owner_of("other", "slow")
    owner.handle(progress("other", 50), 0.0)
    owner.handle(progress("slow", 50), 0.0)
    owner.handle(ContributionCame("other", 0, 50), 1.0)
    now_s = owner.patience_s
    assert owner.handle(TimePassed(), now_s) == [CollectOn(0)]
    for step, missing in [(0, 50), (1, 100)]:
        assert owner.handle(progress("other", missing - 30, rate=0.0, step=step), now_s) == []
        assert owner.handle(progress("slow", 30, rate=0.0, step=step), now_s) == [OpenStep(step, {"slow": 30})]
        opened = OpenStep(step, {"other": missing - 30, "slow": 0})
        assert owner.handle(ContributionCame("slow", step, 30), now_s) == [opened]
        owner.handle(ContributionCame("other", step, missing - 30), now_s)
    assert owner.handle(progress("slow", 50, rate=0.0, step=2), now_s) == []
    assert owner.handle(progress("other", 50, rate=0.0, step=2), now_s) == [OpenStep(2, {"other": 50, "slow": 50})]


@pytest.mark.parametrize("delayed", [False, True])
def test_who_alone_was_asked_and_whose_contribution_is_refused_goes_on(delayed: bool) -> None:
    """Else nobody would compute where all are doubted, and no message would ever change that."""
    owner = StepOwner(100, delayed=delayed)
    owner.handle(PeerBecameReady("slow", 0), 0.0)
    owner.handle(progress("slow", 100, rate=0.0), 0.0)
    now_s = owner.patience_s
    assert owner.handle(TimePassed(), now_s) == [CollectOn(0)]
    assert owner.handle(progress("slow", 100, rate=0.0), now_s) == [OpenStep(0, {"slow": 100})]
    assert owner.handle(ContributionRefused("slow", "NaN"), now_s + 1.0) == [CollectOn(0, "slow")]
    assert owner.handle(progress("slow", 100, rate=0.0), now_s + 2.0) == [OpenStep(0, {"slow": 100})]


def test_what_comes_late_of_a_step_that_is_over_is_no_answer_to_what_is_asked_now() -> None:
    owner = owner_of("other", "slow")
    owner.handle(progress("other", 50), 0.0)
    owner.handle(progress("slow", 50), 0.0)
    owner.handle(ContributionCame("other", 0, 50), 1.0)
    now_s = owner.patience_s
    assert owner.handle(TimePassed(), now_s) == [CollectOn(0)]
    owner.handle(progress("other", 50, rate=0.0), now_s)
    assert owner.handle(ContributionCame("other", 0, 50), now_s) == [CommitStep(0, {"other": 100})]
    owner.handle(progress("other", 40, rate=0.0, step=1), now_s)
    assert owner.handle(progress("slow", 60, rate=0.0, step=1), now_s) == [OpenStep(1, {"slow": 60})]
    assert owner.handle(ContributionCame("slow", 0, 50), now_s) == [], "it is asked once"
    assert owner.handle(ContributionCame("slow", 1, 60), now_s) == [OpenStep(1, {"other": 40, "slow": 0})]


def test_a_batch_that_only_doubted_peers_have_sent_is_committed() -> None:
    owner = owner_of("slow")
    owner.handle(progress("slow", 100, rate=0.0), 0.0)
    now_s = owner.patience_s
    assert owner.handle(TimePassed(), now_s) == [CollectOn(0)]
    assert owner.handle(progress("slow", 100, rate=0.0), now_s) == [OpenStep(0, {"slow": 100})]
    opened = owner.handle(ContributionCame("slow", 0, 100), now_s + 1.0)
    assert opened == [OpenStep(0, {"slow": 0})]
    assert owner.handle(TimePassed(), now_s + 1.0) == [CommitStep(0, {"slow": 100})]


def test_who_always_comes_last_is_not_waited_for_longer_each_time() -> None:
    owner, now_s = owner_of("a", "b", "liar"), 0.0
    for step in range(20):
        for peer in ("a", "b", "liar"):
            owner.handle(PeerBecameReady(peer, step), now_s)
            owner.handle(progress(peer, 40, rate=0.0, step=step), now_s)
        for peer in ("a", "b"):
            owner.handle(ContributionCame(peer, step, 40), now_s + 1.0)
        now_s += 0.999 * owner.patience_s
        owner.handle(ContributionCame("liar", step, 40), now_s)
        assert owner.step == step + 1
    assert owner.patience_s <= 16.0


def test_what_comes_before_its_step_is_opened_counts_for_nothing() -> None:
    owner = owner_of("a", "liar")
    for _ in range(2):
        assert not owner.counts("liar", owner.step, 10)
        assert owner.handle(ContributionCame("liar", owner.step, 100), 0.1) == []
        assert not owner.open
        assert owner.needed == 100
        owner.handle(progress("a", 100, rate=0.0, step=owner.step), 1.0)
        assert owner.counts("liar", owner.step, 10)  # it was told, as everyone
        (committed,) = owner.handle(ContributionCame("a", owner.step, 100), 2.0)
        assert committed == CommitStep(owner.step - 1, {"a": 100})


def test_one_contribution_counts_each_time_that_a_step_is_opened() -> None:
    owner = owner_of("a", "liar")
    owner.handle(progress("a", 100, rate=0.0), 0.0)
    for _ in range(50):
        owner.handle(ContributionCame("liar", 0, 1), 0.1)
    assert owner.needed == 99
    assert owner.handle(ContributionCame("a", 0, 40), 1.0) == [CollectOn(0)]
    assert not owner.counts("a", 0, 10)
    owner.handle(progress("a", 59, rate=0.0), 2.0)
    assert owner.counts("a", 0, 10)
    owner.handle(ContributionCame("a", 0, 59), 3.0)
    assert owner.handle(TimePassed(), 3.1) == [CommitStep(0, {"liar": 1, "a": 99})]


def test_what_nobody_was_asked_for_makes_a_batch_hardly_larger() -> None:
    owner = owner_of("a", "silent", "another")
    assert owner.handle(progress("a", 100, rate=0.0), 1.0) == [OpenStep(0, {"a": 100, "another": 0, "silent": 0})]
    assert not owner.counts("silent", 0, 20)
    assert owner.counts("silent", 0, 10)
    owner.handle(ContributionCame("silent", 0, 10), 1.1)
    assert not owner.counts("another", 0, 10)
    assert owner.handle(ContributionCame("another", 0, 10), 1.2) == []
    assert owner.handle(ContributionCame("a", 0, 100), 1.3) == [CommitStep(0, {"silent": 10, "a": 100})]


def test_nothing_is_opened_ahead_while_first_micro_batches_would_come_on_top() -> None:
    """Six equal peers: who is first to say how fast it is fills no batch for those that are as fast."""
    owner = owner_of("a", "b", "c", "d", "e", "f", target=120)
    for peer in "abcdef":
        owner.handle(progress(peer, 0, rate=0.0), 0.0)
    for peer in "abcde":
        assert owner.handle(progress(peer, 10, rate=20.0), 0.5) == []
    (opened,) = owner.handle(progress("f", 10, rate=20.0), 0.5)
    assert opened == OpenStep(0, dict.fromkeys("abcdef", 20))
