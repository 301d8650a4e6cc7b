"""One seed for each random choice of a run.

Decides that randomness hangs on what is computed (which micro-batch, in which stage, for what) and never on when, so
that dropout is the same under any schedule. Knows no generator.
"""

import hashlib


def derive_seed(job_seed: int, cluster: str, stage: int, micro_batch: int, purpose: str) -> int:
    """A 64-bit unsigned seed, as torch.Generator.manual_seed takes it; the same on every machine and Python.

    `micro_batch` is the cluster's own number, `purpose` a short name such as "dropout".
    """
    # Lengths keep ("a", "bc") and ("ab", "c") apart.
    words = (str(job_seed), cluster, str(stage), str(micro_batch), purpose)
    text = "".join(f"{len(word)}:{word}" for word in words)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
