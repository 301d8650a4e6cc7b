import random
from collections import deque
from collections.abc import Iterable

import pytest

from ravnest.collaboration.peer_steps import (
    ApplyAverage,
    AverageCame,
    CollectingWentOn,
    CountMicroBatch,
    ForgetSum,
    MicroBatchMade,
    PeerEvent,
    PeerInstruction,
    PeerSteps,
    ReportProgress,
    SendContribution,
    StateCame,
    StepOpened,
    TrainingEnded,
)
from ravnest.collaboration.step_owner import (
    CollectOn,
    CommitStep,
    ContributionCame,
    Event,
    Instruction,
    OpenStep,
    PeerBecameReady,
    PeerLeft,
    ProgressCame,
    StepOwner,
    TimePassed,
)

MICRO = 10


def started(step: int = 0) -> PeerSteps:
    steps = PeerSteps()
    assert not steps.computes
    assert steps.handle(StateCame(step)) == [ReportProgress(step, 0, due=True)]
    return steps


def test_it_computes_until_it_is_told_to_stop_and_waits_for_the_average() -> None:
    steps = started()
    assert steps.handle(MicroBatchMade(0, 10)) == [CountMicroBatch(), ReportProgress(0, 10, due=False)]
    assert steps.handle(StepOpened(0, 20)) == []
    assert steps.handle(MicroBatchMade(0, 10)) == [CountMicroBatch(), SendContribution(0, 20)]
    assert not steps.computes
    assert steps.handle(AverageCame(0)) == [ApplyAverage(0), ReportProgress(1, 0, due=True)]
    assert steps.computes


def test_a_micro_batch_that_came_too_late_or_by_older_weights_does_not_count() -> None:
    steps = started()
    steps.handle(MicroBatchMade(0, 10))
    assert steps.handle(StepOpened(0, 10)) == [SendContribution(0, 10)]
    assert steps.handle(MicroBatchMade(0, 10)) == []
    steps.handle(AverageCame(0))
    assert steps.handle(MicroBatchMade(0, 10)) == []


def test_it_goes_on_for_the_same_step_when_too_little_has_come() -> None:
    steps = started()
    steps.handle(MicroBatchMade(0, 10))
    steps.handle(StepOpened(0, 10))
    assert steps.handle(CollectingWentOn(0)) == [ReportProgress(0, 0, due=True)]
    assert steps.computes


def test_the_word_where_to_stop_may_come_before_the_weights_of_that_step() -> None:
    steps = started()
    assert steps.handle(StepOpened(1, 10)) == []
    assert steps.handle(StepOpened(2, 0)) == []
    assert steps.handle(AverageCame(0)) == [ApplyAverage(0), ReportProgress(1, 0, due=True)]
    assert steps.handle(MicroBatchMade(1, 10)) == [CountMicroBatch(), SendContribution(1, 10)]
    assert steps.handle(AverageCame(1)) == [ApplyAverage(1), ReportProgress(2, 0, due=True)]
    assert not steps.computes


def test_a_step_that_goes_on_before_its_weights_have_come_has_no_stop_any_more() -> None:
    steps = started()
    steps.handle(StepOpened(1, 0))
    assert steps.handle(CollectingWentOn(1)) == []
    steps.handle(AverageCame(0))
    assert steps.computes


def test_who_has_nothing_and_is_not_waited_for_rests() -> None:
    steps = started()
    assert steps.handle(StepOpened(0, 0)) == []
    assert not steps.computes
    assert steps.handle(AverageCame(5)) == []


def delayed(step: int = 0) -> PeerSteps:
    steps = PeerSteps(delayed=True)
    steps.handle(StateCame(step))
    return steps


def test_a_delayed_step_goes_on_with_the_same_weights_and_applies_each_average_one_batch_late() -> None:
    steps = delayed()
    steps.handle(StepOpened(0, 10))
    assert steps.handle(MicroBatchMade(0, 10)) == [
        CountMicroBatch(),
        SendContribution(0, 10),
        ReportProgress(1, 0, due=True),
    ]
    assert steps.computes
    assert (steps.step, steps.applied) == (1, 0)
    steps.handle(MicroBatchMade(0, 10))
    assert steps.handle(AverageCame(0)) == [], "it is held until the batch under way is sent"
    assert steps.handle(StepOpened(1, 10)) == [
        SendContribution(1, 10),
        ApplyAverage(0),
        ReportProgress(2, 0, due=True),
    ]
    assert (steps.step, steps.applied) == (2, 1)
    assert steps.handle(MicroBatchMade(0, 10)) == [], "it was computed by older weights"
    assert steps.handle(TrainingEnded()) == []


def test_a_delayed_step_waits_for_the_average_of_the_last_but_one() -> None:
    steps = delayed()
    for step in (0, 1):
        assert steps.computes
        steps.handle(StepOpened(step, 10))
        steps.handle(MicroBatchMade(0, 10))
    assert not steps.computes, "batch 2 is computed by weights with average 0"
    assert steps.handle(AverageCame(0)) == [ApplyAverage(0), ReportProgress(2, 0, due=True)]
    assert steps.computes
    assert steps.handle(AverageCame(1)) == []
    assert steps.handle(TrainingEnded()) == [ApplyAverage(1)]


def test_who_has_not_sent_its_part_of_a_delayed_step_forgets_it_and_is_as_all_others_then() -> None:
    steps = delayed()
    steps.handle(StepOpened(0, 10))
    steps.handle(MicroBatchMade(0, 10))
    steps.handle(MicroBatchMade(0, 10))
    steps.handle(AverageCame(0))
    assert steps.handle(AverageCame(1)) == [ForgetSum(), ApplyAverage(0), ReportProgress(2, 0, due=True)]
    assert (steps.step, steps.applied, steps.samples) == (2, 1, 0)


def test_where_too_little_has_come_what_there_is_of_the_next_batch_is_given_to_the_delayed_step() -> None:
    steps = delayed()
    steps.handle(StepOpened(0, 10))
    steps.handle(MicroBatchMade(0, 10))
    steps.handle(MicroBatchMade(0, 10))
    assert steps.handle(CollectingWentOn(0)) == [ReportProgress(0, 10, due=True)]
    assert steps.handle(StepOpened(0, 10)) == [SendContribution(0, 10), ReportProgress(1, 0, due=True)]


def test_of_the_next_batch_no_more_is_computed_than_was_said_until_it_is_opened_or_goes_on() -> None:
    for word in (StepOpened(1, 40), CollectingWentOn(1)):
        steps = delayed()
        steps.handle(StepOpened(0, 10, most_next=20))
        steps.handle(MicroBatchMade(0, 10))
        assert steps.handle(MicroBatchMade(0, 10))[-1] == ReportProgress(1, 10, due=False)
        assert steps.handle(MicroBatchMade(0, 10))[-1] == ReportProgress(1, 20, due=True)
        assert not steps.computes
        steps.handle(word)
        assert steps.computes


def test_who_has_nothing_in_a_delayed_step_begins_the_next_one() -> None:
    steps = delayed()
    assert steps.handle(StepOpened(0, 0)) == [ReportProgress(1, 0, due=True)]
    assert steps.computes


def test_what_a_delayed_step_does_not_need_any_more_stays_part_of_the_next_batch() -> None:
    def collects() -> PeerSteps:
        steps = delayed()
        steps.handle(StepOpened(0, 10))
        steps.handle(MicroBatchMade(0, 10))
        steps.handle(MicroBatchMade(0, 10))
        assert steps.handle(CollectingWentOn(0)) == [ReportProgress(0, 10, due=True)]
        return steps

    steps = collects()
    assert steps.handle(StepOpened(0, 0)) == [ReportProgress(1, 10, due=True)]
    assert steps.handle(StepOpened(1, 20)) == []
    assert steps.handle(MicroBatchMade(0, 10))[:2] == [CountMicroBatch(), SendContribution(1, 20)]
    steps = collects()
    assert steps.handle(AverageCame(0)) == [ReportProgress(1, 10, due=True)]
    assert (steps.step, steps.applied, steps.samples) == (1, 0, 10)
    steps = collects()
    steps.handle(StepOpened(1, 0))
    assert steps.handle(AverageCame(0))[0] == ForgetSum(), "the next batch does not want it either"


class World:
    """A backbone and its peers with queues between them that deliver in order, whenever they like."""

    def __init__(self, seed: int, target: int, *, delayed: bool) -> None:
        self.draw = random.Random(seed)
        self.delayed = delayed
        self.owner = StepOwner(target, delayed=delayed)
        self.applied: dict[str, list[int]] = {}
        self.weights: dict[str, list[int]] = {}  # of the micro-batches in each peer's sum
        self.target = target
        self.now_s = 0.0
        self.peers: dict[str, PeerSteps] = {}
        self.up: dict[str, deque[Event]] = {}
        self.down: dict[str, deque[PeerEvent]] = {}
        self.sums: dict[int, int] = {}
        self.commits: list[CommitStep] = []
        self.born = 0

    def join(self) -> None:
        name = f"p{self.born}"
        self.born += 1
        self.peers[name], self.up[name] = PeerSteps(delayed=self.delayed), deque()
        self.applied[name] = list(range(self.owner.step))  # in its state
        self.weights[name] = []
        self.down[name] = deque([StateCame(self.owner.step)])

    def lose(self, name: str) -> None:
        for held in (self.peers, self.up, self.down):
            held.pop(name)  # type: ignore[attr-defined]
        self.at_owner([PeerLeft(name)])

    def at_owner(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, ContributionCame):
                if event.step != self.owner.step or event.peer not in self.owner.peers:
                    continue
                if self.owner.counts(event.peer, event.step, event.samples):
                    self.sums[event.step] = self.sums.get(event.step, 0) + event.samples
            self.carry_out(self.owner.handle(event, self.now_s))

    def carry_out(self, instructions: list[Instruction]) -> None:
        for one in instructions:
            match one:
                case OpenStep(step=step, stops=stops, most_next=most_next):
                    for name in sorted(stops.keys() & self.down.keys()):
                        self.down[name].append(StepOpened(step, stops[name], most_next.get(name)))
                case CollectOn(step=step, peer=only):
                    for name, queue in self.down.items():
                        if only in (None, name):
                            queue.append(CollectingWentOn(step))
                case CommitStep():
                    assert sum(one.samples.values()) == self.sums.pop(one.step) >= self.target
                    self.commits.append(one)
                    for queue in self.down.values():
                        queue.append(AverageCame(one.step))

    def at_peer(self, name: str, instructions: list[PeerInstruction], weights: int = 0) -> None:
        """`weights`: by which averages a micro-batch was computed that these instructions are about."""
        for one in instructions:
            match one:
                case ReportProgress(step=step, samples=samples, due=due):
                    if due or self.draw.random() < 0.3:
                        self.up[name].append(PeerBecameReady(name, step))
                        self.up[name].append(ProgressCame(name, step, samples, 20.0, MICRO, 5.0))
                case SendContribution(step=step, samples=samples):
                    assert samples == MICRO * len(self.weights[name])
                    assert len({*self.weights[name]}) < 2, "a sum by two versions of the weights"
                    assert all(0 <= step - weights <= self.delayed for weights in self.weights[name])
                    self.weights[name].clear()
                    self.up[name].append(ContributionCame(name, step, samples))
                case CountMicroBatch():
                    peer = self.peers[name]
                    assert peer.step is not None
                    assert 0 <= peer.step - peer.applied <= self.delayed, "it is too stale"
                    self.weights[name].append(weights)
                case ForgetSum():
                    self.weights[name].clear()
                case ApplyAverage(step=step):
                    assert not self.weights[name], "the sum of older weights is neither sent nor forgotten"
                    self.applied[name].append(step)

    def turn(self, name: str) -> None:
        """One thing happens at or to a peer."""
        kind = self.draw.random()
        peer = self.peers[name]
        if kind < 0.3 and self.down[name]:
            self.at_peer(name, peer.handle(self.down[name].popleft()))
        elif kind < 0.6 and self.up[name]:
            self.at_owner([self.up[name].popleft()])
        elif peer.computes and peer.step is not None:
            self.now_s += 0.05
            weights = peer.applied
            self.at_peer(name, peer.handle(MicroBatchMade(weights, MICRO)), weights)


@pytest.mark.parametrize("delayed", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_both_sides_make_step_after_step_whatever_is_slow_or_lost(seed: int, delayed: bool) -> None:
    world = World(seed, target=150, delayed=delayed)
    for _ in range(3):
        world.join()
    for _ in range(2500):
        kind = world.draw.random()
        if kind < 0.004 and len(world.peers) < 6:
            world.join()
        elif kind < 0.007 and len(world.peers) > 1:
            world.lose(world.draw.choice(sorted(world.peers)))
        elif kind < 0.02:
            world.now_s += world.draw.uniform(0.0, 3.0)
            world.at_owner([TimePassed()])
        else:
            world.turn(world.draw.choice(sorted(world.peers)))
    before = len(world.commits)
    assert before > 3
    for _ in range(4000):  # nobody is lost any more: steps go on
        world.turn(world.draw.choice(sorted(world.peers)))
        world.now_s += 0.02
        world.at_owner([TimePassed()])
    assert len(world.commits) > before + 2
    assert [one.step for one in world.commits] == list(range(len(world.commits)))
    while any(world.down.values()):  # and everyone has made every step
        for name, queue in world.down.items():
            if queue:
                world.at_peer(name, world.peers[name].handle(queue.popleft()))
    for name, peer in world.peers.items():
        world.weights[name].clear()  # what is left at the end belongs to no step
        world.at_peer(name, peer.handle(TrainingEnded()))
        assert peer.applied == world.owner.step
        assert world.applied[name] == list(range(world.owner.step)), "each average once, in order"
