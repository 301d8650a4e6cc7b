"""Random draws of the user's data: the same in every process that reads a sample, and without a trace in the others.

The first and the last stage of a cluster read the same samples, each in its own process, and a dataset may draw random
numbers when it is read (augmentation, masked words). So the global generators of torch, numpy and Python are seeded
with what is read, and given back as they were: dropout of the stage that reads goes on as if nothing had been drawn.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


def seed_of(*numbers: int) -> int:
    """A 64-bit seed that depends on every number and on their order, the same on every machine."""
    state = 0
    for number in numbers:
        state = _mixed((state ^ (number & _MASK)) + _GOLDEN)
    return state


def seed_generators(seed: int) -> None:
    """Seed the generators that a dataset uses without one of its own: torch's on the CPU, numpy's and Python's."""
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    random.seed(seed)


@contextmanager
def generators_kept() -> Iterator[None]:
    """Whatever the block draws, the three generators are afterwards as they were before."""
    torchs, numpys, pythons = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.set_rng_state(torchs)
        np.random.set_state(numpys)
        random.setstate(pythons)


def _mixed(z: int) -> int:
    z &= _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


@contextmanager
def numpy_and_python_seeded(seed: int) -> Iterator[None]:
    """In the block numpy's and Python's generators begin with `seed`, and afterwards they are as they were before.

    torch's generator is left alone: whoever makes weights seeds it in a way of its own.
    """
    numpys, pythons = np.random.get_state(), random.getstate()
    np.random.seed(seed & 0xFFFFFFFF)
    random.seed(seed)
    try:
        yield
    finally:
        np.random.set_state(numpys)
        random.setstate(pythons)
