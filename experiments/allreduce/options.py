"""What the command line says to every part."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Options:
    quick: bool
    """Small sizes, few repeats: what CI runs. Figures of speed mean nothing then."""

    seed: int = 0
    wanlab: Path | None = None
    """The program that joins namespaces by shaped links; None when it cannot be used."""

    why_no_lab: str = ""
