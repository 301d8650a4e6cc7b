"""Speed and memory of common hardware, for nodes whose owner has not measured them.

In: a name as people write it ("RTX 3060", "NVIDIA GeForce RTX 3060", "laptop"). Out: a `Hardware`, or ValueError with
names that are spelt alike. The peaks are the vendors' figures for float32 without tensor cores. What a machine sustains
in training is assumed to be a quarter of that (`SUSTAINED`): small models make less, large ones more. For processors
the two classes are rough guesses. `ravnest profile` measures, and is better than any line of this table.
"""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

SUSTAINED = 0.25
"""The part of the peak that a training is assumed to sustain."""

LENT = 0.9
"""The part of a GPU's memory that is assumed to be free for the job."""


@dataclass(frozen=True)
class Hardware:
    """One kind of machine. `memory_gb` is what it lends to a job, `gflops` what it sustains (GFLOP/s)."""

    name: str
    gflops: float
    memory_gb: float
    device: str


_CUDA_PEAK_TFLOPS_AND_GB: Mapping[str, tuple[float, float]] = {
    "gtx 1060": (4.4, 6),
    "gtx 1070": (6.5, 8),
    "gtx 1080": (8.9, 8),
    "gtx 1080 ti": (11.3, 11),
    "gtx 1650": (3.0, 4),
    "gtx 1660": (5.0, 6),
    "gtx 1660 ti": (5.4, 6),
    "rtx 2060": (6.5, 6),
    "rtx 2070": (7.5, 8),
    "rtx 2080": (10.1, 8),
    "rtx 2080 ti": (13.4, 11),
    "rtx 3050": (9.1, 8),
    "rtx 3060": (12.7, 12),
    "rtx 3060 ti": (16.2, 8),
    "rtx 3070": (20.3, 8),
    "rtx 3070 ti": (21.7, 8),
    "rtx 3080": (29.8, 10),
    "rtx 3080 ti": (34.1, 12),
    "rtx 3090": (35.6, 24),
    "rtx 4060": (15.1, 8),
    "rtx 4060 ti": (22.1, 8),
    "rtx 4070": (29.1, 12),
    "rtx 4070 super": (35.5, 12),
    "rtx 4070 ti": (40.1, 12),
    "rtx 4080": (48.7, 16),
    "rtx 4080 super": (52.2, 16),
    "rtx 4090": (82.6, 24),
    "rtx 5060": (19.2, 8),
    "rtx 5070": (30.9, 12),
    "rtx 5070 ti": (43.9, 16),
    "rtx 5080": (56.3, 16),
    "rtx 5090": (104.8, 32),
    "t4": (8.1, 16),
    "v100": (14.1, 16),
    "l4": (30.3, 24),
    "l40s": (91.6, 48),
    "a10g": (31.2, 24),
    "a100": (19.5, 40),
    "h100": (66.9, 80),
    "h200": (66.9, 141),
}

KNOWN: Mapping[str, Hardware] = {
    name: Hardware(name, 1e3 * peak * SUSTAINED, gb * LENT, "cuda")
    for name, (peak, gb) in _CUDA_PEAK_TFLOPS_AND_GB.items()
} | {
    "laptop": Hardware("laptop", 20.0, 4.0, "cpu"),
    "desktop": Hardware("desktop", 40.0, 8.0, "cpu"),
}
"""By name: what is assumed of it."""

_MAKERS = re.compile(r"\b(nvidia|geforce|tesla|gpu|graphics|sxm\d?|pcie|hbm\d?e?)\b")
_MEMORY = re.compile(r"\b(\d+) ?gb\b")


def hardware_named(text: str) -> Hardware:
    """What is assumed of the hardware of this name. Raises ValueError where no such name is known.

    A memory that the name states ("A100-SXM4-80GB") is that of the card.
    """
    plain = text.lower().replace("-", " ")
    stated = _MEMORY.search(plain)
    words = re.sub(r"[^a-z0-9]+", " ", _MAKERS.sub(" ", _MEMORY.sub(" ", plain))).split()
    name = re.sub(r"\b(gtx|rtx)(?=\d)", r"\1 ", re.sub(r"(?<=\d)ti\b", " ti", " ".join(words)))
    found = KNOWN.get(name)
    if found is None:
        near = difflib.get_close_matches(name, KNOWN, n=3)
        expected = "expected laptop, desktop or a GPU of the list that `ravnest explain hardware` shows"
        meant = f"did you mean {' or '.join(near)}? Else" if near else f"{expected}, or"
        raise ValueError(f"no hardware is known as {text!r}: {meant} give gflops and memory_gb")
    if stated is None or found.device == "cpu" or (memory := int(stated[1]) * LENT) == found.memory_gb:
        return found
    return replace(found, memory_gb=memory)
