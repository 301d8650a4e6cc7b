"""The trace of a simulated run: every computation, message and report as a line, and the result that holds them.

A traced run spends most of its time on writing its trace, so a run is traced only where that is asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ravnest.pipeline import instructions as ins
from ravnest.simulator.clock import Action, VirtualClock


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """One computation, message (from being handed over to its arrival) or report of a stage."""

    start_s: float
    end_s: float
    who: str
    instruction: str
    kind: Literal["compute", "message", "report"]


@dataclass(frozen=True)
class VirtualResult:
    """What came of a simulated run. Times are virtual seconds since its start."""

    trace: tuple[TraceEvent, ...]
    """In the order in which they started; those of one moment in the order in which they were decided."""
    micro_batch: int
    """Samples in a micro-batch."""
    drain_s: float
    """When training was told to stop."""
    end_s: float
    """When the last round was merged everywhere."""
    staleness: Mapping[str, Mapping[int, int]]
    """Of each stage: how many gradients had which staleness, in updates."""
    seconds: Mapping[str, Mapping[str, float]]
    """Of each stage: seconds of computing by kind and of waiting by cause, from the start to its last event."""
    windows: tuple[tuple[float, str, int], ...] = ()
    """(moment, cluster, window) for each time that a window was tuned."""

    def instructions(self, who: str) -> str:
        """Return all that a stage did, except that it passed chunks on, as one trace string."""
        words = (event.instruction for event in self.trace if event.who == who)
        return " ".join(word for word in words if not word.startswith("chunk:"))

    def busy_share(self, who: str, from_s: float, to_s: float) -> float:
        """Return the part of the time from `from_s` to `to_s` in which a stage computed."""
        busy_s = sum(
            max(0.0, min(event.end_s, to_s) - max(event.start_s, from_s))
            for event in self.trace
            if event.who == who and event.kind == "compute"
        )
        return busy_s / (to_s - from_s)

    def samples_per_s(self, from_s: float, to_s: float, cluster: str | None = None) -> float:
        """Samples whose last backward ended in (from_s, to_s], per second; of one cluster or of the fleet."""
        done = sum(
            event.instruction.startswith("B") and from_s < event.end_s <= to_s
            for event in self.trace
            if event.who == f"{cluster}.s0" or (cluster is None and event.who.endswith(".s0"))
        )
        return done * self.micro_batch / (to_s - from_s)

    def fleet_staleness(self) -> Counter[int]:
        """Return how many gradients of the whole fleet had which staleness, in updates."""
        total: Counter[int] = Counter()
        for histogram in self.staleness.values():
            total.update(histogram)
        return total


class VirtualTrace:
    """Writes down what the stages of one simulated run do."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._written: list[TraceEvent] = []

    @property
    def events(self) -> tuple[TraceEvent, ...]:
        """What has been written so far, in the order in which it started."""
        return tuple(self._written)

    def computed(self, who: str, instruction: ins.Compute, seconds: float) -> None:
        """A stage begins a computation that takes `seconds`."""
        now_s = self._clock.now_s
        self._written.append(TraceEvent(now_s, now_s + seconds, who, str(instruction), "compute"))

    def reported(self, who: str, instruction: ins.Report) -> None:
        """A stage reports something to the driver."""
        now_s = self._clock.now_s
        self._written.append(TraceEvent(now_s, now_s, who, str(instruction), "report"))

    def sent(self, who: str, word: object, action: Action, argument: Any) -> tuple[Action, Any]:
        """A stage sends a message. Returns the action and argument that are to be called on arrival in place of these,
        so that the moment of the arrival is written down."""
        index, start_s = len(self._written), self._clock.now_s
        self._written.append(TraceEvent(start_s, start_s, who, str(word), "message"))

        def arrived(argument: Any) -> None:
            self._written[index] = TraceEvent(start_s, self._clock.now_s, who, str(word), "message")
            action(argument)

        return arrived, argument
