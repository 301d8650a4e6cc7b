from itertools import product

import torch

from ravnest.training.sampler import derive_seed


def test_it_is_the_same_everywhere():
    assert derive_seed(0, "c0", 1, 2, "dropout") == 6924270851020694494


def test_every_part_counts_and_parts_do_not_run_together():
    seeds = {derive_seed(*parts) for parts in product((0, 1), ("c", "c1"), (0, 11), (1, 111), ("a", "1a"))}
    assert len(seeds) == 32


def test_torch_takes_it():
    for micro_batch in range(100):
        seed = derive_seed(0, "c0", 0, micro_batch, "dropout")
        assert 0 <= seed < 2**64
        assert torch.Generator().manual_seed(seed).initial_seed() == seed
