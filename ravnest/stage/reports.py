"""What a stage tells the driver beside the course of training: that it lives, what time it is, what it did and when,
and what its tensors take.

Decides when: signs of life each second, and with them whatever else there is to tell; a timeline's pieces as soon as
they are whole.
"""

from collections.abc import Callable

from ravnest.pipeline.controllers import SplitTuner, WindowTuner
from ravnest.pipeline.time_ledger import Ledger
from ravnest.stage import messages as m
from ravnest.stage.compute import EvaluationSums
from ravnest.stage.memory import Peaks
from ravnest.stage.messages import ALIVE_EVERY_S
from ravnest.stage.timeline import NETWORK, Timeline, subject
from ring_allreduce.transport import Message


class Reports:
    """One stage's. `timeline`: where to record what is done, if anybody wants it drawn."""

    def __init__(
        self,
        tell: Callable[[Message], None],
        ledger: Ledger,
        rings: tuple[int, ...],
        peaks: Peaks,
        timeline: Timeline | None,
        now: Callable[[], float],
        late: Callable[[], m.ImitationLateness | None],
    ) -> None:
        """`late`: how late this machine has been."""
        self.tell = tell
        self._ledger = ledger
        self._rings = rings
        self._peaks = peaks
        self._timeline = timeline
        self._now = now
        self._late = late
        if timeline is not None:
            ledger.on_span = timeline.computed
        self._echo: tuple[float | None, float] = None, 0.0
        self._next_alive_s = now()
        self.computations = 0
        """How many have finished."""

    def evaluated(self, evaluation: int, sums: EvaluationSums) -> None:
        """What a finished evaluation came to."""
        self.tell(
            m.EvaluationFinished(
                evaluation=evaluation,
                loss=(sums.loss.total, sums.loss.count),
                metrics=tuple((metric.total, metric.count) for metric in sums.metrics),
            )
        )

    def window(self, tuner: WindowTuner) -> None:
        """It was tuned."""
        self.tell(m.WindowTuned(window=tuner.window, round_trip_s=tuner.bare_s, pace_s=tuner.pace_s))

    def split(self, tuner: SplitTuner) -> None:
        """Whether backwards are split was decided anew."""
        times = tuner.times
        seconds = {} if times is None else {key: getattr(times, key) for key in ("whole_s", "input_s", "weight_s")}
        if times is not None or tuner.mode != "auto":
            self.tell(m.BackwardSplit(splits=tuner.splits, period_s=tuner.period_s, **seconds))

    def turn(self, now_s: float) -> None:
        """What is due."""
        if now_s >= self._next_alive_s:
            self._next_alive_s = now_s + ALIVE_EVERY_S
            echo_s, heard_s = self._echo
            self.tell(m.Alive(finished=self.computations, sent_s=now_s, echo_s=echo_s, heard_s=heard_s))
            self.all()
        elif self._timeline is not None and self._timeline.has_piece:
            self.all()

    def all(self) -> None:
        """Everything that the driver has not been told."""
        if self._timeline is not None:
            for piece in self._timeline.pieces():
                self.tell(piece)
        if self._peaks.grown:
            self._peaks.grown = False
            self.tell(m.MemoryPeaks(tensor_bytes=dict(self._peaks.bytes)))
        late = self._late()
        if late is not None:
            self.tell(late)

    def heard_driver(self, alive: m.Alive) -> None:
        """Its clock goes back to it, with the next sign of life."""
        self._echo = alive.sent_s, self._now()

    def spent(self) -> dict[str, float]:
        """The ledger, without what took no time."""
        return {state: seconds for state, seconds in self._ledger.seconds.items() if seconds}

    # The timeline, where one is wanted.

    def received(self, message: Message) -> None:
        if self._timeline is not None and (carried := subject(message)) is not None:
            now_s = self._now()
            self._timeline.add(NETWORK, f"receive {carried[0]}", carried[1], now_s, now_s)

    def sent(self, message: Message, began_s: float) -> None:
        if self._timeline is not None and (carried := subject(message)) is not None:
            self._timeline.add(NETWORK, f"send {carried[0]}", carried[1], began_s, self._now())

    def round_is(self, number: int, kind: str | None, ring: int | None = None) -> None:
        """In all of the stage's rings, or in one, the round is `kind` from now on; None: it is over."""
        if self._timeline is not None:
            for each in self._rings if ring is None else (ring,):
                self._timeline.change(each, number, kind, self._now())
