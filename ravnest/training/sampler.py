"""The random choices of a run: which samples make up a cluster's k-th micro-batch, and the seeds of other choices.

Samples follow by arithmetic alone from the job's seed and the numbers of the epoch and the micro-batch, so that the
first and the last stage of a cluster agree without talking, clusters never read the same sample twice in an epoch, and
a resumed run needs one number. The shuffle is spelled out here rather than taken from a library, whose streams may
differ between versions on unequal machines. Seeds depend on what is computed (which micro-batch, in which stage, for
what purpose) and never on when, so that dropout is the same under any schedule.
"""

import hashlib
import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ravnest.errors import InvalidInput

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1


def epoch_permutation(dataset_size: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """A permutation of range(dataset_size), the same everywhere for the same arguments.

    Sample i gets the i-th output of a SplitMix64 stream keyed by (seed, epoch); the order is that of the outputs.
    """
    key = _mix_int(_mix_int(seed & _MASK) ^ (epoch & _MASK))
    with np.errstate(over="ignore"):
        z = np.uint64(key) + np.uint64(_GOLDEN) * np.arange(1, dataset_size + 1, dtype=np.uint64)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return np.argsort(z, kind="stable").astype(np.int64, copy=False)


class Sampler:
    """Random access to a cluster's micro-batches of sample indices. It has no position of its own.

    Each epoch is shuffled anew over the whole dataset, and this cluster reads the positions from
    floor(share[0]·size) up to floor(share[1]·size) of it. Samples beyond the last whole micro-batch are dropped; in
    the next epoch they are others. Clusters whose shares touch must pass the very same boundary number.
    """

    def __init__(self, dataset_size: int, seed: int, share: tuple[float, float], micro_batch: int) -> None:
        """`share` is a pair of fractions 0 ≤ start < end ≤ 1. Raises InvalidInput if it cannot fill a micro-batch."""
        start, end = share
        if not 0.0 <= start < end <= 1.0:
            raise ValueError(f"a share must satisfy 0 <= start < end <= 1, not {share}")
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
        # An epoch's permutation costs a sort: keep the one in use and, at the turn, the next.
        self._epoch = lru_cache(maxsize=2)(
            lambda epoch: epoch_permutation(dataset_size, seed, epoch)[self._start : self._end].copy()
        )

    def batch(self, k: int) -> list[int]:
        """The indices into the dataset of micro-batch `k`, which counts from 0 over all epochs."""
        if k < 0:
            raise ValueError(f"micro-batches count from 0, not {k}")
        epoch, place = divmod(k, self.per_epoch)
        first = place * self.micro_batch
        chosen: list[int] = self._epoch(epoch)[first : first + self.micro_batch].tolist()
        return chosen


def evaluation_batches(dataset_size: int, micro_batch: int, *, short_last: bool = True) -> list[range]:
    """Consecutive spans of `micro_batch` indices that cover the held-out samples in order.

    The last may be short; with `short_last` False (a model whose batch size is fixed) it is left out instead.
    """
    starts = range(0, dataset_size, micro_batch)
    spans = [range(start, min(start + micro_batch, dataset_size)) for start in starts]
    return spans if short_last else [span for span in spans if len(span) == micro_batch]


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
