"""The figures of one stage in a run's result: its shares of time, its memory, and how stale its gradients were.

In: what the record of a run has counted. Out: types of a result, which report.py names beside the events.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class TimeShares:
    """The shares of a stage's time by what it did; `seconds` is the whole.

    `compute`, `averaging`, `evaluation`, `handoff` and `bubble` add up to 1.
    """

    seconds: float
    compute: float
    """Forward, backward and update together."""
    forward: float
    backward: float
    update: float
    averaging: float
    """Taking snapshots and merging. The rings themselves move while the stage computes."""
    evaluation: float
    handoff: float
    """Time between the stage's threads, when it neither computes nor waits for another stage."""
    bubble: float
    """Waiting, for any cause."""
    waiting: Mapping[str, float]
    """The bubble by cause, as in ravnest/pipeline/time_ledger.py: input, window, staleness, lag, norm, drain."""


@dataclass(frozen=True)
class StageMemory:
    """The most memory that a stage's tensors took, and what the plan predicts. Both are without the process itself."""

    planned_bytes: int
    """The prediction for `window` micro-batches in flight."""
    tensor_bytes: int
    parts: Mapping[str, int]
    """By part, as in ravnest/stage/memory.py: the bytes at that part's own peak. `tensor_bytes` is their sum."""
    window: int | None = None
    """The largest window that the run used, planned or tuned; None where it is not known."""


@dataclass(frozen=True)
class StageFigures:
    """The figures of one stage: overall, and in the steady state, which is None where the run was too short."""

    stage: str
    node: str
    steady: TimeShares | None
    overall: TimeShares | None
    memory: StageMemory | None = None
    step_s: float | None = None
    """Seconds per micro-batch in the steady state, by the stage's own clock."""
    mean_staleness: float | None = None
    max_staleness: int | None = None
    """The highest staleness of all gradients of the stage, in updates."""
    late_share: float | None = None
    """How late this machine was, as a share of the computing that it imitated; None where it imitated none."""
    link_late_s: float | None = None
    """By how many seconds emulated links handed a message on too late, in the mean; None without emulated links."""
