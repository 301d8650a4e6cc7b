import tracemalloc
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ravnest.errors import InvalidInput
from ravnest.training.sampler import EvaluationBatches, Sampler, shuffled


def whole_epoch(size, seed, epoch):
    return shuffled(np.arange(size), size, seed, epoch)


def test_the_permutation_is_this_one_for_ever():
    # Machines of one run may have different libraries: a change here would let clusters read the same samples.
    assert whole_epoch(8, seed=0, epoch=0).tolist() == [3, 0, 4, 7, 5, 2, 6, 1]
    assert shuffled(np.array([0, 1, 10**9 - 1]), 10**9, seed=7, epoch=3).tolist() == [666237652, 324975692, 402086829]


@given(size=st.integers(0, 300), seed=st.integers(0, 2**64 - 1), epoch=st.integers(0, 2**40))
def test_it_is_a_permutation(size, seed, epoch):
    assert sorted(whole_epoch(size, seed, epoch).tolist()) == list(range(size))


@given(size=st.integers(1, 2**62), seed=st.integers(0, 2**64 - 1), data=st.data())
def test_values_of_large_sets_lie_in_them_and_differ(size, seed, data):
    positions = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20, unique=True))
    values = shuffled(np.array(positions, dtype=np.int64), size, seed, 0).tolist()
    assert all(0 <= value < size for value in values)
    assert len(set(values)) == len(values)


def test_epochs_and_seeds_differ_and_mix_well():
    first = whole_epoch(1000, 0, 0)
    for other in (whole_epoch(1000, 0, 1), whole_epoch(1000, 1, 0), np.arange(1000)):
        assert (first == other).mean() < 0.02
        assert abs(np.corrcoef(first, other)[0, 1]) < 0.15


@pytest.mark.parametrize("size", [2, 5, 12, 100])
def test_each_sample_is_as_often_at_each_place(size):
    """Chi-squared over the table of places and samples, whose mean is (n - 1)² and deviation √2 · (n - 1)."""
    epochs = 1500
    counts = np.zeros((size, size))
    for epoch in range(epochs):
        counts[np.arange(size), whole_epoch(size, 3, epoch)] += 1
    expected = epochs / size
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert abs(statistic - (size - 1) ** 2) < 5 * np.sqrt(2) * (size - 1) + 3


def test_every_order_of_a_few_samples_comes_up_equally_often():
    counts = Counter(tuple(whole_epoch(4, 11, epoch).tolist()) for epoch in range(2400))
    assert len(counts) == 24
    assert sum((count - 100) ** 2 / 100 for count in counts.values()) < 23 + 5 * np.sqrt(2 * 23)


def test_neighbours_in_the_order_are_no_neighbours_in_the_data():
    order = whole_epoch(10_000, 5, 0)
    steps = np.diff(order)
    assert (np.abs(steps) == 1).sum() < 20  # 2 are expected of a random order
    assert (steps > 0).mean() == pytest.approx(0.5, abs=0.02)
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.05


def test_a_billion_samples_take_no_memory():
    tracemalloc.start()
    sampler = Sampler(10**9, 0, (0.25, 0.75), 8)
    seen = {index for k in (0, 1, sampler.per_epoch - 1, sampler.per_epoch, 10**12) for index in sampler.batch(k)}
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(seen) == 40
    assert peak < 2_000_000


@settings(deadline=None)
@given(
    size=st.integers(40, 400),
    seed=st.integers(0, 1000),
    inner=st.lists(st.floats(0.05, 0.95), max_size=4, unique=True),
    micro_batch=st.integers(1, 7),
    epoch=st.integers(0, 3),
)
def test_no_sample_twice_in_an_epoch_over_all_clusters(size, seed, inner, micro_batch, epoch):
    seen: list[int] = []
    dropped = 0
    for share in pairwise([0.0, *sorted(inner), 1.0]):
        try:
            sampler = Sampler(size, seed, share, micro_batch)
        except InvalidInput:
            dropped += micro_batch - 1
            continue
        dropped += micro_batch - 1
        for k in range(epoch * sampler.per_epoch, (epoch + 1) * sampler.per_epoch):
            batch = sampler.batch(k)
            assert len(batch) == micro_batch
            seen += batch
    assert len(seen) == len(set(seen))
    assert size - dropped <= len(seen) <= size
    assert set(seen) <= set(range(size))


def test_access_is_random_and_stateless():
    one, other = Sampler(100, 3, (0.25, 0.75), 4), Sampler(100, 3, (0.25, 0.75), 4)
    assert one.per_epoch == 12
    forwards = [one.batch(k) for k in range(40)]
    assert [other.batch(k) for k in reversed(range(40))] == forwards[::-1]


def test_each_epoch_draws_on_the_whole_dataset():
    sampler = Sampler(64, 0, (0.0, 0.5), 8)
    seen = {index for k in range(20 * sampler.per_epoch) for index in sampler.batch(k)}
    assert seen == set(range(64))


def test_a_share_smaller_than_a_micro_batch_says_what_to_change():
    with pytest.raises(InvalidInput) as raised:
        Sampler(100, 0, (0.0, 0.05), 8)
    assert str(raised.value) == (
        "micro_batch: a cluster's share of the 100 training samples is 5, less than one micro-batch of 8: lower"
        " micro_batch, bring more samples, or plan fewer clusters"
    )


@pytest.mark.parametrize("share", [(0.5, 0.5), (-0.1, 1.0), (0.0, 1.1), (0.6, 0.4), (float("nan"), 1.0)])
def test_an_impossible_share(share):
    with pytest.raises(ValueError, match="a share must satisfy"):
        Sampler(100, 0, share, 8)


def test_a_negative_position():
    with pytest.raises(ValueError, match="count from 0"):
        Sampler(100, 0, (0.0, 1.0), 8).batch(-1)


@pytest.mark.parametrize(
    ("size", "short_last", "sizes"),
    [(10, True, [4, 4, 2]), (10, False, [4, 4]), (8, True, [4, 4]), (3, True, [3]), (3, False, []), (0, True, [])],
)
def test_evaluation_batches(size, short_last, sizes):
    batches = EvaluationBatches(size, 4, short_last=short_last)
    assert [len(batch) for batch in batches] == sizes
    assert [index for batch in batches for index in batch] == list(range(sum(sizes)))
    assert batches[1:] == list(batches)[1:]


def test_the_batches_of_a_huge_held_out_set_are_made_when_asked_for():
    batches = EvaluationBatches(10**12, 8)
    assert (len(batches), batches[-1]) == (125 * 10**9, range(10**12 - 8, 10**12))
