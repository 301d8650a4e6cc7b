"""What a stage reports to the driver beside the course of training: that it is alive, its clock, what it did and when,
and how much memory its tensors take.

In: what happens in the stage. Out: messages to the driver. Signs of life go out each second, and everything else that
there is to report goes with them; a full piece of the timeline is sent at once.

`Timeline` is a bounded list of spans, handed on in pieces, from which a picture is drawn. A lane is one row of the
picture: what the stage computed or waited for (the states of the ledger), what it sent and received, and one lane for
each of its rings. After `limit` spans, further ones are only counted.

`ClockOffset` compares clocks by the signs of life that the driver and a stage exchange. The driver's Alive carries its
time; the stage's next Alive returns it, with the times at which it was heard and answered. Both ways are taken to be
equally long, so the error is at most half of what they took together, and the quickest exchange counts. Clocks drift
apart by up to some 50 µs a second, which is not corrected.
"""

import math
from collections.abc import Callable

from ravnest.job.experts_table import ExpertsTableConfig
from ravnest.pipeline.controllers import SplitTuner, WindowTuner
from ravnest.pipeline.time_ledger import Ledger
from ravnest.stage import messages as m
from ravnest.stage.compute import EvaluationSums
from ravnest.stage.expert_reports import EXPERTS_EVERY_S, experts_asked
from ravnest.stage.memory import Peaks
from ravnest.stage.message_fields import MOST_NAMED, PIECE
from ravnest.stage.messages import ALIVE_EVERY_S
from ring_allreduce.transport import Lane, Message, TransportStats

COMPUTE = 0
NETWORK = 1
RINGS = 2
"""The lane of ring r is RINGS + r."""

SPANS_A_STAGE = 100_000
"""The most spans of a stage, which take about 2.5 MB in the driver and 10 MB of trace.json."""

LINKS_EVERY_S = 5.0
"""How often the driver is told what the stage has sent over its links."""

NUMBERLESS = -1
"""The number of a span that has none."""


def lane_of(ring: int) -> int:
    """The lane of a ring."""
    return RINGS + ring


class Timeline:
    """One stage's spans on their way to the driver."""

    def __init__(self, limit: int = SPANS_A_STAGE) -> None:
        self._left = limit
        self._spans: list[tuple[int, str, int, float, float]] = []
        self._open: dict[tuple[int, int], tuple[str, float]] = {}
        self.dropped = 0
        """The number of spans beyond the limit."""

    def add(self, lane: int, kind: str, number: int | None, began_s: float, ended_s: float) -> None:
        """Record a span, or count it as dropped beyond the limit. Times are by the stage's clock."""
        if not self._left:
            self.dropped += 1
            return
        self._left -= 1
        self._spans.append((lane, kind, NUMBERLESS if number is None else number, began_s, ended_s))

    def computed(self, kind: str, number: int | None, began_s: float, ended_s: float) -> None:
        """Record what the stage computed or waited for, as the ledger tells it."""
        self.add(COMPUTE, kind, number, began_s, ended_s)

    def change(self, ring: int, number: int, kind: str | None, now_s: float) -> None:
        """Record that the round is `kind` in the ring's lane from now on, which ends what it was; None: it is over."""
        before = self._open.pop((ring, number), None)
        if before is not None:
            self.add(lane_of(ring), before[0], number, before[1], now_s)
        if kind is not None:
            self._open[ring, number] = kind, now_s

    @property
    def has_piece(self) -> bool:
        """Whether a full piece waits to be sent."""
        return len(self._spans) >= PIECE

    def pieces(self) -> list[m.Spans]:
        """Everything that waits, as messages to the driver. It is forgotten here."""
        spans, self._spans = self._spans, []
        return [self._piece(spans[at : at + PIECE]) for at in range(0, len(spans), PIECE)]

    def _piece(self, spans: list[tuple[int, str, int, float, float]]) -> m.Spans:
        lanes, kinds, numbers, began_s, ended_s = zip(*spans, strict=True)
        return m.Spans(
            lanes=lanes, kinds=kinds, numbers=numbers, began_s=began_s, ended_s=ended_s, dropped=self.dropped
        )


def subject(message: Message) -> tuple[str, int] | None:
    """What a message between stages carries, and its number. None for a message that is not drawn."""
    match message:
        case m.Activation():
            return "activation", message.micro_batch
        case m.Gradient():
            return "gradient", message.micro_batch
        case m.GlobalNorm():
            return "norm", message.update
        case m.EvaluationActivation():
            return "evaluation", message.batch
        case m.TiedWeights():
            return "tied weights", message.version
        case m.TiedGradients():
            return "tied gradients", message.update
        case _:
            return None


class ClockOffset:
    """One stage's clock as the driver sees it."""

    def __init__(self) -> None:
        self._estimate_s = 0.0
        self.error_s = math.inf
        """The largest error of `offset_s`, or half of it where `offset_s` is 0. It is infinite before the first
        exchange."""

    def exchanged(self, sent_s: float, heard_s: float, answered_s: float, back_s: float) -> None:
        """Take one exchange: the driver's `sent_s` and `back_s`, and between them the stage's `heard_s` and
        `answered_s`, each by its own clock."""
        error_s = max(0.0, (back_s - sent_s) - (answered_s - heard_s)) / 2
        if error_s < self.error_s:
            self.error_s = error_s
            self._estimate_s = ((heard_s - sent_s) + (answered_s - back_s)) / 2

    @property
    def offset_s(self) -> float:
        """The stage's clock less the driver's. It is 0 where the error is as large as the estimate, as on one machine,
        where both read the same clock."""
        return 0.0 if abs(self._estimate_s) <= self.error_s else self._estimate_s


class Reports:
    """The reports of one stage."""

    def __init__(
        self,
        tell: Callable[[Message], None],
        ledger: Ledger,
        rings: tuple[int, ...],
        peaks: Peaks,
        timeline: Timeline | None,
        now: Callable[[], float],
        late: Callable[[], m.ImitationLateness | None],
        transport: TransportStats,
        experts: ExpertsTableConfig | None = None,
    ) -> None:
        """Arguments:
        tell: sends a message to the driver.
        rings: the rings of the stage, which have lanes in the timeline.
        timeline: where to record what is done; None where no picture is wanted.
        late: says how late this machine has been.
        transport: counts what the stage has sent to each peer, and whom its ports have refused.
        experts: where the experts are that this process asks, if it does.
        """
        self.tell = tell
        self._ledger = ledger
        self._rings = rings
        self._peaks = peaks
        self._timeline = timeline
        self._now = now
        self._late = late
        self._transport = transport
        self._experts = experts
        self._links_told_s = self._experts_told_s = -math.inf
        if timeline is not None:
            ledger.on_span = timeline.computed
        self._echo: tuple[float | None, float] = None, 0.0
        self._next_alive_s = now()
        self.computations = 0
        """The number of computations that have finished."""

    def evaluated(self, evaluation: int, sums: EvaluationSums) -> None:
        """Report the result of an evaluation."""
        self.tell(
            m.EvaluationFinished(
                evaluation=evaluation,
                loss=(sums.loss.total, sums.loss.count),
                metrics=tuple((metric.total, metric.count) for metric in sums.metrics),
            )
        )

    def window(self, tuner: WindowTuner) -> None:
        """Report that the window was tuned."""
        self.tell(m.WindowTuned(window=tuner.window, round_trip_s=tuner.bare_s, pace_s=tuner.pace_s))

    def split(self, tuner: SplitTuner) -> None:
        """Report that it was decided anew whether backwards are split."""
        times = tuner.times
        seconds = {} if times is None else {key: getattr(times, key) for key in ("whole_s", "input_s", "weight_s")}
        if times is not None or tuner.mode != "auto":
            self.tell(m.BackwardSplit(splits=tuner.splits, period_s=tuner.period_s, **seconds))

    def turn(self, now_s: float) -> None:
        """Report what is due at `now_s`."""
        if now_s >= self._next_alive_s:
            self._next_alive_s = now_s + ALIVE_EVERY_S
            echo_s, heard_s = self._echo
            self.tell(m.Alive(finished=self.computations, sent_s=now_s, echo_s=echo_s, heard_s=heard_s))
            self.all()
        elif self._timeline is not None and self._timeline.has_piece:
            self.all()

    def all(self) -> None:
        """Report everything that the driver has not been told yet."""
        if self._timeline is not None:
            for piece in self._timeline.pieces():
                self.tell(piece)
        if self._peaks.grown:
            self._peaks.grown = False
            self.tell(m.MemoryPeaks(tensor_bytes=dict(self._peaks.bytes)))
        late = self._late()
        if late is not None:
            self.tell(late)
        self._tell_links(self._now())
        self._tell_experts(self._now())
        strangers = self._transport.strangers.news(self._now())
        if strangers:
            self.tell(m.StrangersRefused(connections=strangers))

    def _tell_links(self, now_s: float) -> None:
        """Report what was sent to other stages, where that was not reported lately."""
        if now_s - self._links_told_s < LINKS_EVERY_S:
            return
        sent: dict[Lane, dict[str, int]] = {lane: {} for lane in Lane}
        for (peer, lane), traffic in list(self._transport.sent.items()):
            if peer != m.DRIVER and len(sent[lane]) < MOST_NAMED:
                sent[lane][peer] = traffic.n_bytes
        if any(sent.values()):
            self._links_told_s = now_s
            self.tell(m.LinksUsed(pipeline_bytes=sent[Lane.PIPELINE], bulk_bytes=sent[Lane.BULK]))

    def _tell_experts(self, now_s: float) -> None:
        """Report what was asked of experts of others, where that was not reported lately."""
        if now_s - self._experts_told_s < EXPERTS_EVERY_S:
            return
        for asked in experts_asked(self._experts):
            self._experts_told_s = now_s
            self.tell(asked)

    def heard_driver(self, alive: m.Alive) -> None:
        """Keep the driver's time, which goes back to it with the next sign of life."""
        self._echo = alive.sent_s, self._now()

    def spent(self) -> dict[str, float]:
        """The ledger's seconds by state, without the states that took no time."""
        return {state: seconds for state, seconds in self._ledger.seconds.items() if seconds}

    # The timeline, where one is wanted.

    def received(self, message: Message) -> None:
        """Record that a message arrived just now."""
        if self._timeline is not None and (carried := subject(message)) is not None:
            now_s = self._now()
            self._timeline.add(NETWORK, f"receive {carried[0]}", carried[1], now_s, now_s)

    def sent(self, message: Message, began_s: float) -> None:
        """Record that a message, whose sending began at `began_s`, has been sent just now."""
        if self._timeline is not None and (carried := subject(message)) is not None:
            self._timeline.add(NETWORK, f"send {carried[0]}", carried[1], began_s, self._now())

    def round_is(self, number: int, kind: str | None, ring: int | None = None) -> None:
        """Record that in all of the stage's rings, or in one, the round is `kind` from now on. None: it is over."""
        if self._timeline is not None:
            for each in self._rings if ring is None else (ring,):
                self._timeline.change(each, number, kind, self._now())
