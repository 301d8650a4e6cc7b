"""What a page shows of one stage. Pure.

In: what was planned of it, and the records of metrics.jsonl that are about it. Out: a state in one word, and plain
data. What a record says that does not fit is left out.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ravnest.page.plan_facts import StageFacts

SILENT_S = 20.0
"""A stage of which nothing was told for so long is shown as silent."""
_WAITS = 0.2
"""A stage that waits for more of its time than this, and for more than it computes, is shown as waiting."""
_NAMED = 0.05
"""A cause of waiting is named that takes so much of the time."""
_NEWEST = 0.4
"""What the newest second counts in a share of time that is shown."""


@dataclass
class StageView:
    """One stage, as far as it was heard of."""

    facts: StageFacts
    node: str
    units: tuple[int, int]
    planned_bytes: int | None = None
    """The prediction for its tensors with the largest window that was used; None: it was never planned so."""
    updates: int = 0
    shares: Mapping[str, float] = field(default_factory=dict)
    """Of its time, by what it did: `compute`, `averaging` and `bubble`."""
    waiting: Mapping[str, float] = field(default_factory=dict)
    """The bubble by cause, as in ravnest/pipeline/time_ledger.py."""
    heard_s: float | None = None
    staleness: Sequence[int] = ()
    max_staleness: int = 0
    tensor_bytes: int | None = None
    process_bytes: int | None = None
    splits: bool | None = None
    round_bytes: int | None = None
    """What came to it for the last average."""

    def updated(self, record: Mapping[str, object]) -> None:
        """Take a record of kind `update`."""
        update, staleness = record.get("update"), record.get("staleness")
        self.updates = update + 1 if isinstance(update, int) else self.updates
        self.staleness = [each for each in staleness if isinstance(each, int)] if isinstance(staleness, list) else ()
        self.max_staleness = max([self.max_staleness, *self.staleness])

    def timed(self, shares: Mapping[str, object], at_s: float) -> None:
        """Take its part of a record of kind `time`."""
        causes = shares.get("waiting")
        told = {each: number(shares.get(each)) or 0.0 for each in ("compute", "averaging", "bubble")}
        waiting = (
            {str(each): number(share) or 0.0 for each, share in causes.items()} if isinstance(causes, dict) else {}
        )
        first = self.heard_s is None
        self.shares = told if first else _mixed(self.shares, told)
        self.waiting = waiting if first else _mixed(self.waiting, waiting)
        self.heard_s = at_s

    def measured(self, record: Mapping[str, object]) -> None:
        """Take a record of kind `memory`, `stage` or `split`."""
        parts, process, splits = record.get("tensor_bytes"), record.get("process_bytes"), record.get("splits")
        if isinstance(parts, dict):
            self.tensor_bytes = sum(each for each in parts.values() if isinstance(each, int))
        self.process_bytes = process if isinstance(process, int) else self.process_bytes
        self.splits = splits if isinstance(splits, bool) else self.splits

    def state(self, cluster: str, now_s: float) -> str:
        """One word for what it does: its cluster's state, unless that trains."""
        if cluster != "trains":
            return cluster
        if self.heard_s is None:
            return "starts"
        if now_s - self.heard_s > SILENT_S:
            return "silent"
        bubble = self.shares.get("bubble", 0.0)
        return "waits" if bubble > max(_WAITS, self.shares.get("compute", 0.0)) else "works"

    def document(self, state: str, *, as_planned: bool = True) -> dict[str, object]:
        """Everything about it, as plain data. `as_planned`: whether the rings of rounds are those of the plan."""
        cause = max(self.waiting, key=lambda each: self.waiting[each], default=None)
        named = cause is not None and self.waiting[cause] >= _NAMED
        return {
            "stage": self.facts.stage,
            "node": self.node,
            "units": list(self.units),
            "state": state,
            "busy": _rounded(self.shares.get("compute")),
            "averaging": _rounded(self.shares.get("averaging")),
            "bubble": _rounded(self.shares.get("bubble")),
            "waits_for": cause if named else None,
            "waits_share": _rounded(self.waiting[cause]) if cause is not None and named else None,
            "staleness": _rounded(sum(self.staleness) / len(self.staleness)) if self.staleness else None,
            "max_staleness": self.max_staleness,
            "updates": self.updates,
            "tensor_bytes": self.tensor_bytes,
            "planned_tensor_bytes": self.planned_bytes,
            "process_bytes": self.process_bytes,
            "round_bytes": self.round_bytes,
            "planned_round_bytes": self.facts.round_bytes if as_planned else None,
            "splits_backward": self.splits,
        }


def number(value: object) -> float | None:
    """The number that a record holds; None for anything else, and for what is no finite number."""
    try:
        found = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:  # of a whole number with hundreds of digits
        return None
    return found if math.isfinite(found) else None


def _mixed(before: Mapping[str, float], new: Mapping[str, float]) -> dict[str, float]:
    return {each: (1 - _NEWEST) * before.get(each, 0.0) + _NEWEST * new.get(each, 0.0) for each in {*before, *new}}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
