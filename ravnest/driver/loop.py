"""The driver's loop: it takes messages of the stages, and does what the control of the run says.

`RunControl` decides; the loop connects it with the transport, the ends of processes, the clock, the record of the run
and the collector of checkpoints. Everything that the loop waits for has a deadline in the `FailurePolicy`.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ravnest.driver import control as c
from ravnest.driver.checkpoint_collector import CheckpointCollector
from ravnest.driver.fail_stop import FailurePolicy
from ravnest.driver.observe.record import RunRecord
from ravnest.driver.observe.trace import RunTrace
from ravnest.driver.ray.stage_actors import StageEnded
from ravnest.errors import RunFailed
from ravnest.stage import messages as m
from ravnest.stage.messages import ALIVE_EVERY_S
from ring_allreduce.transport import Delivery, Endpoint, Lane, Outbox

_POLL_S = 0.1
_NEWS_EVERY_S = 0.25
_LEAVE_S = 20.0

_SIGNS_OF_LIFE = (m.Alive, m.StateTensor)


class StageEnds(Protocol):
    """Who knows which stages' processes have ended: Ray in a real run."""

    def ended(self, timeout_s: float = 0.0) -> list[StageEnded]:
        """The processes that have ended since the last call, each once. Waits up to `timeout_s` for one."""
        ...


@dataclass(frozen=True)
class StageLinks:
    """How the driver speaks with the stages, and how it hears that their processes have ended."""

    endpoint: Endpoint
    outbox: Outbox
    """Holds the state that is still to be sent to the stages."""
    ends: StageEnds


class DriverLoop:
    """Runs one session of a run from the moment the stages hold their state until they have all left."""

    def __init__(
        self,
        links: StageLinks,
        control: c.RunControl,
        membership: FailurePolicy,
        collector: CheckpointCollector,
        record: RunRecord,
        *,
        stop_wanted: Callable[[], bool],
        trace: RunTrace | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`stop_wanted` says whether the user wants the run to end; `trace` takes the stages' timelines; `now` is the
        clock, in seconds."""
        self._endpoint = links.endpoint
        self._news = links.ends
        self._outbox = links.outbox
        self._control = control
        self._membership = membership
        self._collector = collector
        self._record = record
        self._stop_wanted = stop_wanted
        self._trace = trace
        self._now = now
        self._stages = set(record.stages)
        self._starting = set(record.stages)
        self._next_alive_s = now()
        self._next_news_s = now()
        self._stopping = False
        self._training_since_s: float | None = None
        self._finished: dict[str, int] = {}  # stage → what it last said it had got done

    def run(self) -> None:
        """Loop until the run is over and its checkpoints are written. Raises RunFailed or NodeLost, after which the
        caller ends the processes."""
        while self._control.phase is not c.RunPhase.DONE or self._collector.busy:
            self.turn()
        self._farewell()

    def turn(self) -> None:
        """One iteration of the loop, which waits up to 0.1 s for a message; `run` makes as many as it takes."""
        for delivery in self._endpoint.poll(_POLL_S):
            self._take(delivery)
        now_s = self._now()
        self._outbox.flush()
        for path, round_ in self._collector.written():
            self._record.checkpoint(path, round_)
        if now_s >= self._next_alive_s:
            self._next_alive_s = now_s + ALIVE_EVERY_S
            for stage in self._stages:
                self._endpoint.send(stage, Lane.PIPELINE, m.Alive(sent_s=now_s))
        if now_s >= self._next_news_s:
            self._next_news_s = now_s + _NEWS_EVERY_S
            for end in self._news.ended():
                self._take_end(end)
        if self._control.phase is not c.RunPhase.DONE:
            self._membership.check(now_s)
        if self._stop_wanted() and not self._stopping:
            self._stopping = True
            self._record.stopping()
        if self._training_since_s is not None:
            elapsed_s = now_s - self._training_since_s
            if self._stopping:
                self._follow(self._control.stop(evaluate=False))
            self._follow(self._control.tick(elapsed_s))
            self._record.tick(self._control, elapsed_s)

    def _take(self, delivery: Delivery) -> None:
        now_s = self._now()
        if self._training_since_s is not None:
            self._record.at(now_s - self._training_since_s)
        message = delivery.message
        progress = not isinstance(message, m.Alive | m.Spans | m.MemoryPeaks | m.ImitationLateness)
        if isinstance(message, m.Alive):
            progress = message.finished != self._finished.get(delivery.sender, 0)
            self._finished[delivery.sender] = message.finished
        self._membership.heard(delivery.sender, now_s, progress=progress)
        self._draw(delivery, now_s)
        match message:
            case m.StageStarted():
                self._starting.discard(delivery.sender)
                self._record.started(delivery.sender, message)
                if not self._starting and self._training_since_s is None:
                    self._training_since_s = now_s
                    for stage in self._control.first_stages:
                        self._endpoint.send(stage, Lane.PIPELINE, m.Go())
                    self._record.training()
            case m.StateTensor():
                self._collector.take(delivery.sender, message, delivery.tensors)
            case m.StateSent():
                self._collector.finish(delivery.sender, message)
            case m.Updated():
                self._record.updated(delivery.sender, message)
            case m.RoundMerged():
                self._record.merged(delivery.sender, message)
            case m.WindowTuned():
                self._record.window_tuned(delivery.sender, message)
            case m.BackwardSplit():
                self._record.backward_split(delivery.sender, message)
            case m.MemoryPeaks():
                self._record.held(delivery.sender, message)
            case m.ImitationLateness():
                self._record.imitated[delivery.sender] = message
            case m.RoundsFinished():
                self._record.finished(delivery.sender, message)
        if not isinstance(message, _SIGNS_OF_LIFE):
            self._follow(self._control.handle(delivery.sender, message))

    def _draw(self, delivery: Delivery, now_s: float) -> None:
        if self._trace is not None:
            match delivery.message:
                case m.Alive() as alive:
                    self._trace.heard(delivery.sender, alive, now_s)
                case m.Spans() as piece:
                    self._trace.take(delivery.sender, piece)

    def _follow(self, instructions: list[c.Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case c.SendToStage():
                    self._endpoint.send(instruction.peer, Lane.PIPELINE, instruction.message)
                case c.EnterPhase():
                    self._record.phase(instruction.phase)
                case c.RecordRoundOpened():
                    self._record.round_opened(instruction)
                case c.RecordRoundCommitted():
                    self._record.round_committed(instruction)
                case c.BeginCheckpoint():
                    self._collector.begin(instruction)
                case c.CommitCheckpoint():
                    self._collector.commit(instruction.round)
                case c.RecordEvaluation():
                    self._record.evaluated(instruction)

    def _take_end(self, end: StageEnded) -> None:
        self._stages.discard(end.stage)
        if self._control.phase is c.RunPhase.DONE:
            return  # the driver has all that it needs of the stage, however it ended
        if end.outcome is None:
            self._membership.ended(end.stage, end.reason)
        elif end.outcome.error is not None:
            path = self._record.write_log(end.stage, end.outcome.details or end.outcome.error)
            raise RunFailed(f"{end.stage}: {end.outcome.error} (details in {path})")
        else:
            self._membership.ended(end.stage, "it left before the run was over")

    def _farewell(self) -> None:
        """Wait up to 20 s for the stages to leave by themselves. The results of the run are saved already."""
        deadline_s = self._now() + _LEAVE_S
        while self._stages and self._now() < deadline_s:
            for delivery in self._endpoint.poll(_POLL_S):
                self._draw(delivery, self._now())  # the last pieces of their timelines
            for end in self._news.ended():
                self._stages.discard(end.stage)
