"""The arithmetic of progress: its identity at every moment, and stability where averaging weights diverges."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ring_allreduce.errors import InvalidInput
from ring_allreduce.rounds.outer_optimizer import Nesterov
from ring_allreduce.rounds.progress import Progress

ELEMENTS = 16


class Member:
    """One stage: live weights beside the arithmetic, and a float64 account of what it did since its snapshot."""

    def __init__(self, start, outer=None):
        self.weights = start.clone()
        self.progress = Progress(start, outer)
        self.since = torch.zeros(ELEMENTS, dtype=torch.float64)
        self.parts = {}

    def train(self, step):
        self.weights += step
        self.since += step.double()

    def snapshot(self, number):
        self.parts[number] = self.progress.snapshot(number, self.weights)
        self.since.zero_()
        return self.parts[number]

    def merge(self, number, average):
        self.weights += self.progress.merge(number, average)
        del self.parts[number]

    def check_identity(self):
        pending = sum((part.double() for part in self.parts.values()), torch.zeros(ELEMENTS).double())
        expected = self.progress.anchor.double() + pending + self.since
        torch.testing.assert_close(self.weights.double(), expected, rtol=0, atol=2e-5)
        torch.testing.assert_close(self.progress.base.double(), expected - self.since, rtol=0, atol=2e-5)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 3), st.sampled_from([None, "scaled", "nesterov"]))
def test_weights_are_anchor_plus_pending_plus_new_progress_at_every_moment(seed, lag, kind):
    chance, generator = random.Random(seed), torch.Generator().manual_seed(seed)

    def noise():
        return torch.randn(ELEMENTS, generator=generator) * 0.1

    start = noise()
    outers = {None: lambda: None, "scaled": lambda: lambda average: 0.7 * average, "nesterov": Nesterov}
    members = [Member(start, outers[kind]()) for _ in range(3)]
    contributed = [0, 0, 0]
    merged = [0, 0, 0]
    parts: dict[int, list[torch.Tensor]] = {}
    for _ in range(60):
        i = chance.randrange(3)
        member, action = members[i], chance.choice(["train", "snapshot", "merge"])
        if action == "train":
            member.train(noise())
        elif action == "snapshot" and contributed[i] < merged[i] + lag:
            contributed[i] += 1
            parts.setdefault(contributed[i], []).append(member.snapshot(contributed[i]).clone())
        elif action == "merge" and len(parts.get(merged[i] + 1, ())) == 3:
            merged[i] += 1
            member.merge(merged[i], sum(parts[merged[i]]) / 3)
        member.check_identity()
        assert len(member.progress.pending) <= lag
    same = [m.progress.anchor for m, done in zip(members, merged, strict=True) if done == merged[0]]
    assert all(torch.equal(anchor, same[0]) for anchor in same)


def test_with_nothing_in_flight_it_is_parameter_averaging():
    torch.manual_seed(0)
    members = [Member(torch.zeros(ELEMENTS)) for _ in range(3)]
    weights = torch.tensor([1.0, 2.0, 5.0])
    for number in range(1, 20):
        for member in members:
            member.train(torch.randn(ELEMENTS))
        mean = sum(w * m.weights.double() for w, m in zip(weights, members, strict=True)) / weights.sum()
        parts = [member.snapshot(number) for member in members]
        average = sum(w * p for w, p in zip(weights, parts, strict=True)) / weights.sum()
        for member in members:
            member.merge(number, average)
            torch.testing.assert_close(member.weights.double(), mean, rtol=0, atol=1e-5)
            torch.testing.assert_close(member.weights, member.progress.anchor, rtol=0, atol=1e-5)


@pytest.mark.parametrize("lag", [1, 2, 3])
def test_a_lone_member_is_not_touched_bit_by_bit(lag):
    member = Member(torch.randn(ELEMENTS))
    for number in range(1, 30):
        member.train(torch.randn(ELEMENTS))
        member.snapshot(number)
        before = member.weights.clone()
        if number >= lag:
            due = number - lag + 1
            member.merge(due, member.parts[due])
        assert torch.equal(member.weights, before)


def spreads(rounds, overlap, naive, outer=lambda: None):
    """How far two members are apart after each round, merged `overlap` rounds after its snapshot."""
    generator = torch.Generator().manual_seed(1)
    members = [Member(torch.zeros(ELEMENTS), outer()) for _ in range(2)]
    snapshots: dict[int, list[torch.Tensor]] = {}
    apart = []
    for number in range(1, rounds + 1):
        for member in members:
            member.train(0.01 * torch.randn(ELEMENTS, generator=generator))
        snapshots[number] = [m.weights.clone() if naive else m.snapshot(number) for m in members]
        due = number - overlap + 1
        if due >= 1:
            mean = sum(snapshots[due]) / 2
            for member, snapshot in zip(members, snapshots.pop(due), strict=True):
                if naive:
                    member.weights += mean - snapshot
                else:
                    member.merge(due, mean)
        apart.append((members[0].weights - members[1].weights).norm().item())
    return apart


@pytest.mark.parametrize("outer", [lambda: None, lambda: Nesterov(0.7, 0.9)])
def test_three_rounds_in_flight_stay_stable_for_a_thousand_rounds(outer):
    apart = spreads(1000, overlap=3, naive=False, outer=outer)
    # What two rounds in flight and one in the making can hold, however long it goes on.
    assert max(apart) < 0.4
    assert max(apart[-100:]) < 2 * max(apart[10:110])


@pytest.mark.parametrize(("pending", "root"), [(1, 1.0), (2, 1.1509), (3, 1.1838)])
def test_averaging_weights_grows_by_its_largest_root_each_round(pending, root):
    """w += average − snapshot. Apart by d: d(t + 1) = d(t) − d(t − pending), roots z^(pending + 1) = z^pending − 1."""
    apart = spreads(150, overlap=pending + 1, naive=True)
    growth = (apart[149] / apart[49]) ** 0.01
    assert growth == pytest.approx(root, abs=0.02)
    if pending > 1:
        assert apart[149] > 1e4


def test_members_and_anchor_stay_together_over_many_rounds():
    generator = torch.Generator().manual_seed(2)
    members = [Member(torch.ones(ELEMENTS)) for _ in range(2)]
    for number in range(1, 1001):
        for member in members:
            member.train(0.01 * torch.randn(ELEMENTS, generator=generator))
        average = sum(member.snapshot(number) for member in members) / 2
        for member in members:
            member.merge(number, average)
    anchors = [member.progress.anchor for member in members]
    assert torch.equal(*anchors)
    # No rounding piles up: after each merge both are where the anchor is, to the last few bits.
    for member in members:
        torch.testing.assert_close(member.weights, anchors[0], rtol=1e-6, atol=1e-6)


def test_the_start_is_copied_unless_it_may_be_taken_over():
    start = torch.zeros(ELEMENTS)
    kept, taken = Progress(start), Progress(start, copy=False)
    assert kept.anchor.data_ptr() != start.data_ptr()
    assert taken.anchor.data_ptr() == start.data_ptr()


def test_merge_leaves_the_average_as_it_is():
    progress = Progress(torch.zeros(3))
    progress.snapshot(1, torch.ones(3))
    average = torch.full((3,), 2.0)
    assert progress.merge(1, average).tolist() == [1.0, 1.0, 1.0]
    assert average.tolist() == [2.0, 2.0, 2.0]
    assert progress.anchor.tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("outer", [lambda: None, Nesterov])
def test_a_correction_comes_in_pieces_that_are_bounded(outer, monkeypatch):
    monkeypatch.setattr("ring_allreduce.rounds.progress.PIECE_ELEMENTS", 5)
    torch.manual_seed(0)
    start, live, average = torch.randn(3, ELEMENTS)
    whole, pieces = Progress(start, outer()), Progress(start, outer())
    contributed = whole.snapshot(1, live).clone()
    pieces.snapshot(1, live)
    came = []
    pieces.merge_in_pieces(1, average, lambda at, part: came.append((at, part)), total_weight=2.0)
    assert [(at, len(part)) for at, part in came] == [(0, 5), (5, 5), (10, 5), (15, 1)]
    correction = torch.cat([part for _, part in came])
    assert torch.equal(correction, whole.merge(1, average, total_weight=2.0))
    assert torch.equal(pieces.anchor, whole.anchor)
    torch.testing.assert_close(correction, whole.anchor - start - contributed)


def test_rounds_are_merged_in_order_and_each_once():
    progress = Progress(torch.zeros(3))
    progress.snapshot(1, torch.ones(3))
    progress.snapshot(2, torch.ones(3))
    assert progress.pending == (1, 2)
    with pytest.raises(InvalidInput, match="not the oldest"):
        progress.merge(2, torch.ones(3))
    progress.merge(1, torch.ones(3))
    with pytest.raises(InvalidInput, match="not the oldest"):
        progress.merge(1, torch.ones(3))
    with pytest.raises(InvalidInput, match="does not follow"):
        progress.snapshot(2, torch.ones(3))


@pytest.mark.parametrize("wrong", [torch.zeros(2), torch.zeros(3, 1), torch.zeros(3, dtype=torch.float64)])
def test_refuses_other_shapes_and_dtypes(wrong):
    progress = Progress(torch.zeros(3))
    with pytest.raises(InvalidInput):
        progress.snapshot(1, wrong)
    progress.snapshot(1, torch.zeros(3))
    with pytest.raises(InvalidInput):
        progress.merge(1, wrong)
    if wrong.shape != (2,):
        with pytest.raises(InvalidInput):
            Progress(wrong)
