"""Imitating a slower node: each piece of a stage's work ends when the node would have ended it.

Decides when that is. The node begins a piece as soon as it has done the one before or, where the stage waited, when the
wait was over. So what this machine loses by sleeping too long, or between two pieces, is made up by padding the next
one less, and the pace is exact in the long run. No more than one micro-batch's work is ever made up: what is beyond,
or is not made up before the stage waits again, counts as late. Knows no training.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, assert_never

from cluster_planner import WorkTimes
from ravnest.pipeline import instructions as ins
from ravnest.pipeline.time_ledger import Ledger


class Pacer:
    """One stage's. `sleep` and `now` are the clock's two sides."""

    def __init__(
        self,
        times: WorkTimes,
        evaluation_s: float,
        ledger: Ledger,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`evaluation_s`: of one held-out batch. `ledger`: says whether the stage waited."""
        self._times = times
        self._evaluation_s = evaluation_s
        self._ledger = ledger
        self._sleep = sleep
        self._now = now
        self._most_owed_s = times.forward_s + times.backward_s
        self._waited_s = ledger.waited_s
        self._due_s = now()
        self._ended_s = self._due_s
        self.imitated_s = 0.0
        """What the node took, since the first update: before it a stage measures and tries out."""
        self.late_s = 0.0
        """By how much this machine was late, since then, and did not make it up."""
        self._warm = False

    def paced(self, instruction: ins.Compute, work: Callable[[], Any]) -> Callable[[], Any]:
        """`work`, to be called next, as the node would do it. To be asked for when the stage begins it."""
        waited_s, self._waited_s = self._waited_s, self._ledger.waited_s
        ready_s = self._now() if self._waited_s > waited_s else None
        return partial(self._run, instruction, work, ready_s)

    def _run(self, instruction: ins.Compute, work: Callable[[], Any], ready_s: float | None) -> Any:
        took_s = self.seconds(instruction)
        began_s = self._now()
        if ready_s is None:
            ready_s = self._due_s
        else:
            self._lose(self._ended_s - self._due_s)
        start_s = max(ready_s, began_s - self._most_owed_s)
        self._lose(start_s - ready_s)
        result = work()
        if took_s is None:  # the plan counts nothing for it: it takes what it takes here
            self._due_s = start_s + self._now() - began_s
        else:
            self._due_s = start_s + took_s
            left_s = self._due_s - self._now()
            if left_s > 0:
                self._sleep(left_s)
            self.imitated_s += took_s * self._warm
        self._ended_s = self._now()
        self._warm = self._warm or isinstance(instruction, ins.RunUpdate)
        return result

    def seconds(self, instruction: ins.Compute) -> float | None:
        """What the node takes for it; None where the plan counts nothing."""
        times = self._times
        match instruction:
            case ins.RunForward():
                return times.forward_s
            case ins.RunBackward():
                return times.backward_s
            case ins.RunInputGradients():
                return times.input_gradients_s
            case ins.RunWeightGradients():
                return times.weight_gradients_s
            case ins.RunUpdate():
                return times.update_s
            case ins.RunEvaluation():
                return self._evaluation_s
            case ins.TakeSnapshot() | ins.ApplyMerge():
                return None
            case _:
                assert_never(instruction)

    def _lose(self, late_s: float) -> None:
        """So much is not made up any more."""
        if self._warm:
            self.late_s += max(0.0, late_s)
