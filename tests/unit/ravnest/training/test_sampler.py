from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ravnest.errors import InvalidInput
from ravnest.training.sampler import Sampler, epoch_permutation, evaluation_batches


def test_the_permutation_is_this_one_for_ever():
    # Machines of one run may have different libraries: a change here would let clusters read the same samples.
    assert epoch_permutation(8, seed=0, epoch=0).tolist() == [0, 7, 2, 5, 4, 6, 3, 1]


@given(size=st.integers(0, 300), seed=st.integers(0, 2**64 - 1), epoch=st.integers(0, 2**40))
def test_it_is_a_permutation(size, seed, epoch):
    assert sorted(epoch_permutation(size, seed, epoch).tolist()) == list(range(size))


def test_epochs_and_seeds_differ_and_mix_well():
    first = epoch_permutation(1000, 0, 0)
    for other in (epoch_permutation(1000, 0, 1), epoch_permutation(1000, 1, 0), np.arange(1000)):
        assert (first == other).mean() < 0.02
        assert abs(np.corrcoef(first, other)[0, 1]) < 0.15


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
    batches = evaluation_batches(size, 4, short_last=short_last)
    assert [len(batch) for batch in batches] == sizes
    assert [index for batch in batches for index in batch] == list(range(sum(sizes)))
