"""The trace of a virtual run, for who asks for one: every computation, message and report, in words.

Decides how they are written down; it costs most of the time of a run that has one.
"""

from __future__ import annotations

from typing import Any

from ravnest.pipeline import instructions as ins
from ravnest.simulator.clock import Action, VirtualClock
from ravnest.simulator.virtual_result import TraceEvent


class VirtualTrace:
    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._written: list[TraceEvent] = []

    @property
    def events(self) -> tuple[TraceEvent, ...]:
        return tuple(self._written)

    def computed(self, who: str, instruction: ins.Compute, seconds: float) -> None:
        now_s = self._clock.now_s
        self._written.append(TraceEvent(now_s, now_s + seconds, who, str(instruction), "compute"))

    def reported(self, who: str, instruction: ins.Report) -> None:
        now_s = self._clock.now_s
        self._written.append(TraceEvent(now_s, now_s, who, str(instruction), "report"))

    def sent(self, who: str, word: object, action: Action, argument: Any) -> tuple[Action, Any]:
        """The action and argument to have called on arrival in place of these."""
        index, start_s = len(self._written), self._clock.now_s
        self._written.append(TraceEvent(start_s, start_s, who, str(word), "message"))

        def arrived(argument: Any) -> None:
            self._written[index] = TraceEvent(start_s, self._clock.now_s, who, str(word), "message")
            action(argument)

        return arrived, argument
