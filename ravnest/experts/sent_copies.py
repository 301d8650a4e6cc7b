"""Which copies of its experts a host has to send to their stand-bys. Pure.

A copy is due when the expert has had updates since the last one, when its stand-by is another host than before, and
when the stand-by has not said for `COPY_S` that it has it: a message to a host that is gone is lost without a word. A
host that has no room for a copy is not asked again for `REFUSED_S`; the next one is.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

COPY_S = 30.0
"""A copy that its stand-by has not confirmed for so long is sent again."""

REFUSED_S = 60.0


@dataclass(frozen=True)
class _Sent:
    to: str
    updates: int
    at_s: float
    kept: bool = False


class SentCopies:
    """The last copy of each expert that was sent."""

    def __init__(self) -> None:
        self._sent: dict[Hashable, _Sent] = {}
        self._refused_s: dict[Hashable, dict[str, float]] = {}

    def is_due(self, expert: Hashable, to: str, updates: int, now_s: float) -> bool:
        """Whether a copy is to be sent to this stand-by."""
        sent = self._sent.get(expert)
        if sent is None or (sent.to, sent.updates) != (to, updates):
            return True
        return not sent.kept and now_s >= sent.at_s + COPY_S

    def sent(self, expert: Hashable, to: str, updates: int, now_s: float, *, reached: bool = True) -> None:
        """A copy was sent. Who cannot be reached from here is as one that has no room: the next one is asked."""
        self._sent[expert] = _Sent(to, updates, now_s)
        if not reached:
            self.refused(expert, to, now_s)

    def kept(self, expert: Hashable, by: str, updates: int) -> None:
        """A stand-by has said that it has a copy. What is about another copy than the last changes nothing."""
        sent = self._sent.get(expert)
        if sent is not None and (sent.to, sent.updates) == (by, updates):
            self._sent[expert] = replace(sent, kept=True)

    def refused(self, expert: Hashable, by: str, now_s: float) -> None:
        """A host has said that it has no room for a copy."""
        self._refused_s.setdefault(expert, {})[by] = now_s
        self._sent.pop(expert, None)

    def refusers(self, expert: Hashable, now_s: float) -> set[str]:
        """The hosts that have lately had no room for a copy of it."""
        return {host for host, at_s in self._refused_s.get(expert, {}).items() if now_s < at_s + REFUSED_S}

    def forget(self, expert: Hashable) -> None:
        """The expert is hosted here no longer."""
        self._sent.pop(expert, None)
        self._refused_s.pop(expert, None)
