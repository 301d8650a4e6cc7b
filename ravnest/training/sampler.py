"""The random choices of a run: which samples make up a cluster's k-th micro-batch, and the seeds of other choices.

Samples follow by arithmetic alone from the job's seed and the numbers of the epoch and the micro-batch, so that the
first and the last stage of a cluster agree without talking, clusters never read the same sample twice in an epoch, and
a resumed run needs one number. The shuffle is spelled out here rather than taken from a library, whose streams may
differ between versions on unequal machines. Seeds depend on what is computed (which micro-batch, in which stage, for
what purpose) and never on when, so that dropout is the same under any schedule.

**The order of an epoch** is a keyed permutation, each value of which is computed by itself, so that memory does not
grow with the data set. It is a generalised Feistel network (Black & Rogaway, "Ciphers with arbitrary finite domains",
CT-RSA 2002). With a = ceil(sqrt(n)) and b = ceil(n / a), a number x < a·b is a pair (l, r) = (x mod a, x div a), and
ROUNDS times, in turn,

    l ← (l + F(r)) mod a        r ← (r + F(l)) mod b

where F is SplitMix64's output function, keyed by seed, epoch and round. Each step can be undone, so the whole is a
permutation of range(a·b). Where a value is n or more, of which there are less than a, the network is applied again
until it is below n (cycle walking), which makes it a permutation of range(n).
"""

import hashlib
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import overload

import numpy as np
from numpy.typing import NDArray

from ravnest.errors import InvalidInput

ORDER = "feistel"
"""The name of the permutation, for checkpoints: a run that goes on in another order reads other samples."""

ROUNDS = 12
"""Half of them change l, half of them r. Four are enough for large sets; more cost little and mix small ones."""

MOST_SAMPLES = 2**62
"""The largest data set. Sums of two halves then stay within 64 bits."""

ENDLESS = 2**52
"""What `len` gives of a stream (streams.py), which begins again where it ends."""

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1
_BLOCK = 4096


def shuffled(positions: NDArray[np.int64], dataset_size: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """The samples at these positions of an epoch's order, the same everywhere for the same arguments.

    `positions` lie in range(dataset_size). Over all of them the samples are a permutation of range(dataset_size).
    """
    a = math.isqrt(max(dataset_size - 1, 0)) + 1
    b = max(1, -(-dataset_size // a))
    key = _mix_int(_mix_int(seed & _MASK) ^ (epoch & _MASK))
    keys = [np.uint64(_mix_int(key ^ number)) for number in range(ROUNDS)]
    values = positions.astype(np.uint64)
    outside: NDArray[np.intp] | slice = slice(None)
    while values[outside].size:
        values[outside] = _encrypted(values[outside], np.uint64(a), np.uint64(b), keys)
        outside = np.flatnonzero(values >= np.uint64(dataset_size))
    return values.astype(np.int64)


def _encrypted(x: NDArray[np.uint64], a: np.uint64, b: np.uint64, keys: Sequence[np.uint64]) -> NDArray[np.uint64]:
    r, left = np.divmod(x, a)
    for number, key in enumerate(keys):
        if number % 2 == 0:
            left = (left + _mixed(r, key) % a) % a
        else:
            r = (r + _mixed(left, key) % b) % b
    return r * a + left


def _mixed(x: NDArray[np.uint64], key: np.uint64) -> NDArray[np.uint64]:
    """SplitMix64's output for the state key + x·golden."""
    with np.errstate(over="ignore"):
        z = key + x * np.uint64(_GOLDEN)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


class Sampler:
    """Random access to a cluster's micro-batches of sample indices. It has no position of its own.

    Each epoch is shuffled anew over the whole dataset, and this cluster reads the positions from
    floor(share[0]·size) up to floor(share[1]·size) of it. Samples beyond the last whole micro-batch are dropped; in
    the next epoch they are others. Clusters whose shares touch must pass the very same boundary number. Memory does
    not depend on the size.
    """

    def __init__(self, dataset_size: int, seed: int, share: tuple[float, float], micro_batch: int) -> None:
        """`share` is a pair of fractions 0 ≤ start < end ≤ 1. Raises InvalidInput if it cannot fill a micro-batch."""
        start, end = share
        if not 0.0 <= start < end <= 1.0:
            raise ValueError(f"a share must satisfy 0 <= start < end <= 1, not {share}")
        if dataset_size > MOST_SAMPLES:
            raise InvalidInput(f"`train` has {dataset_size:,} samples; the most is 2**62", key="data.factory")
        self._start, self._end = math.floor(start * dataset_size), math.floor(end * dataset_size)
        self.dataset_size = dataset_size
        self.micro_batch = micro_batch
        self.per_epoch = (self._end - self._start) // micro_batch
        """How many micro-batches this cluster makes of one epoch."""
        if self.per_epoch == 0:
            raise InvalidInput(
                f"a cluster's share of the {dataset_size} training samples is {self._end - self._start}, less than one"
                f" micro-batch of {micro_batch}: lower micro_batch, bring more samples, or plan fewer clusters",
                key="micro_batch",
            )
        # Many micro-batches are computed at once, which takes little longer than one: keep those in use.
        in_block = max(1, _BLOCK // micro_batch)

        def block(epoch: int, number: int) -> NDArray[np.int64]:
            first = number * in_block
            count = min(in_block, self.per_epoch - first)
            begin = self._start + first * micro_batch
            positions = np.arange(begin, begin + count * micro_batch, dtype=np.int64)
            return shuffled(positions, dataset_size, seed, epoch).reshape(count, micro_batch)

        self._in_block = in_block
        self._block = lru_cache(maxsize=2)(block)

    def epoch(self, k: int) -> int:
        """The epoch of micro-batch `k`, from 0."""
        return k // self.per_epoch

    def lane(self, k: int) -> int:
        """Micro-batches of different lanes may be read by different processes: here each is one of its own."""
        return k

    def batch(self, k: int) -> list[int]:
        """The indices into the dataset of micro-batch `k`, which counts from 0 over all epochs."""
        if k < 0:
            raise ValueError(f"micro-batches count from 0, not {k}")
        epoch, place = divmod(k, self.per_epoch)
        number, row = divmod(place, self._in_block)
        chosen: list[int] = self._block(epoch, number)[row].tolist()
        return chosen


class EvaluationBatches(Sequence[range]):
    """Consecutive spans of `micro_batch` indices that cover the held-out samples in order, computed when asked for."""

    def __init__(self, dataset_size: int, micro_batch: int, *, short_last: bool = True) -> None:
        """The last may be short; with `short_last` False (a model whose batch size is fixed) it is left out instead."""
        self._size, self._batch = dataset_size, micro_batch
        self._count = -(-dataset_size // micro_batch) if short_last else dataset_size // micro_batch

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, which: int) -> range: ...

    @overload
    def __getitem__(self, which: slice) -> list[range]: ...

    def __getitem__(self, which: int | slice) -> range | list[range]:
        if isinstance(which, slice):
            return [self[number] for number in range(*which.indices(self._count))]
        number = which + self._count if which < 0 else which
        if not 0 <= number < self._count:
            raise IndexError(which)
        return range(number * self._batch, min((number + 1) * self._batch, self._size))


def derive_seed(job_seed: int, cluster: str, stage: int, micro_batch: int, purpose: str) -> int:
    """A 64-bit unsigned seed, as torch.Generator.manual_seed takes it. It is the same on every machine and Python.

    `micro_batch` is the cluster's own number, `purpose` a short name such as "dropout".
    """
    # Lengths keep ("a", "bc") and ("ab", "c") apart.
    words = (str(job_seed), cluster, str(stage), str(micro_batch), purpose)
    text = "".join(f"{len(word)}:{word}" for word in words)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _mix_int(z: int) -> int:
    z = (z + _GOLDEN) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)
