import random

import numpy as np
import torch

from ravnest.training.draws import generators_kept, seed_generators, seed_of


def test_seeds_are_these_for_ever_and_depend_on_every_number():
    assert seed_of(0, 1, 2) == 6768782832058643234
    assert len({seed_of(*numbers) for numbers in ((), (0,), (0, 0), (0, 1), (1, 0), (-1,), (2**64 + 5,))}) == 7


def draws():
    return torch.rand(()).item(), float(np.random.rand()), random.random()


def test_all_three_generators_are_seeded_and_given_back():
    before = draws()
    with generators_kept():
        seed_generators(7)
        first = draws()
        seed_generators(7)
        assert draws() == first
        seed_generators(8)
        assert all(a != b for a, b in zip(draws(), first, strict=True))
    seed_generators(7)
    assert draws() == first != before
