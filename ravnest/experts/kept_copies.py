"""The copies of other hosts' experts that a host keeps, so that it can go on with them. Pure.

What others can make a host keep is bounded: each copy in bytes, and all in number. When there is no room, a copy gives
way that this host is not asked to keep any more, since another host is the stand-by now; else the new one is refused,
and its sender asks another host (sent_copies.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from ravnest.experts.claims import Kept
from ravnest.experts.grid import Expert


class KeptCopies:
    """The copies of one host."""

    def __init__(self, most: int, most_bytes: int) -> None:
        """`most`: copies. `most_bytes`: of the tensors of one."""
        self._most, self._most_bytes = most, most_bytes
        self._copies: dict[Expert, tuple[Mapping[str, Tensor], Kept]] = {}

    @property
    def kept(self) -> dict[Expert, Kept]:
        """Of which experts there are copies, and how old these are."""
        return {expert: kept for expert, (_, kept) in self._copies.items()}

    def __contains__(self, expert: Expert) -> bool:
        return expert in self._copies

    def fits(self, state: Mapping[str, Tensor]) -> bool:
        """Whether a copy is not larger than one may be."""
        return sum(one.nbytes for one in state.values()) <= self._most_bytes

    def keep(
        self, expert: Expert, state: Mapping[str, Tensor], kept: Kept, is_for_here: Callable[[Expert], bool]
    ) -> bool:
        """Keep a copy instead of an older one of the same expert; returns whether this one, or a newer one, is kept.

        is_for_here: whether this host is still the stand-by of an expert.
        """
        held = self._copies.get(expert)
        if held is not None and (held[1].term, held[1].updates) > (kept.term, kept.updates):
            return True
        if not self.fits(state):
            return False
        if held is None and len(self._copies) >= self._most:
            given_up = next((one for one in self._copies if not is_for_here(one)), None)
            if given_up is None:
                return False
            del self._copies[given_up]
        self._copies[expert] = state, kept
        return True

    def state(self, expert: Expert) -> tuple[Mapping[str, Tensor], Kept]:
        """A copy."""
        return self._copies[expert]

    def drop(self, expert: Expert) -> None:
        """Keep an expert's copy no longer, where there is one."""
        self._copies.pop(expert, None)
