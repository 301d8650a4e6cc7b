"""What a target is: a reader of bytes, the errors that it declares, and valid inputs to begin with.

A target takes any bytes and returns, or raises an error that its reader declares. Anything else is a defect.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

MOST_BYTES = 1 << 16
"""The longest input. Everything here reads more, but nothing more happens there."""


@dataclass(frozen=True)
class Target:
    """A reader of bytes, the errors that it may raise, and inputs to begin with."""

    read: Callable[[bytes], object]
    declared: tuple[type[Exception], ...]
    seeds: Sequence[bytes]
    slowness: int = 1
    """How many times longer an input takes than the quickest target's, roughly: so many fewer are tried."""

    def takes(self, data: bytes) -> None:
        """Read `data`. What is raised is a defect."""
        with contextlib.suppress(*self.declared):
            self.read(data)
