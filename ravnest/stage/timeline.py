"""What a stage did and when, kept to be drawn, and how far its clock is from the driver's. Pure: times are passed in.

`Timeline` is a bounded list of spans, handed on in pieces. A lane is one row of the picture: what the stage computed or
waited for (the ledger's states), what it sent and received, and one lane for each of its rings. Once `limit` spans were
taken, further ones are only counted.

`ClockOffset` compares clocks by the signs of life that the driver and a stage exchange. The driver's Alive carries its
time; the stage's next Alive returns it, with when it was heard and when it was answered. The way there and the way back
are taken to be equally long, so the error is at most half of what the two took together, and the quickest exchange
counts. Clocks drift apart by up to some 50 µs a second, which this does not follow.
"""

import math

from ravnest.stage import messages as m
from ring_allreduce.transport import Message

COMPUTE = 0
NETWORK = 1
RINGS = 2
"""The lane of ring r is RINGS + r."""

SPANS_A_STAGE = 100_000
"""About 2.5 MB in the driver and 10 MB of trace.json for each stage."""

PIECE = 1024
"""Spans that travel in one message, at most: some 25 kB."""

NUMBERLESS = -1


def lane_of(ring: int) -> int:
    return RINGS + ring


class Timeline:
    """One stage's spans on their way to the driver."""

    def __init__(self, limit: int = SPANS_A_STAGE) -> None:
        self._left = limit
        self._spans: list[tuple[int, str, int, float, float]] = []
        self._open: dict[tuple[int, int], tuple[str, float]] = {}
        self.dropped = 0
        """Spans beyond the limit."""

    def add(self, lane: int, kind: str, number: int | None, began_s: float, ended_s: float) -> None:
        if not self._left:
            self.dropped += 1
            return
        self._left -= 1
        self._spans.append((lane, kind, NUMBERLESS if number is None else number, began_s, ended_s))

    def computed(self, kind: str, number: int | None, began_s: float, ended_s: float) -> None:
        """As the ledger tells it."""
        self.add(COMPUTE, kind, number, began_s, ended_s)

    def change(self, ring: int, number: int, kind: str | None, now_s: float) -> None:
        """In the ring's lane the round is `kind` from now on, which ends what it was before; None: it is over."""
        before = self._open.pop((ring, number), None)
        if before is not None:
            self.add(lane_of(ring), before[0], number, before[1], now_s)
        if kind is not None:
            self._open[ring, number] = kind, now_s

    @property
    def has_piece(self) -> bool:
        """Whether a whole piece waits."""
        return len(self._spans) >= PIECE

    def pieces(self) -> list[m.Spans]:
        """All that waits, for the driver, and forgotten here."""
        spans, self._spans = self._spans, []
        return [self._piece(spans[at : at + PIECE]) for at in range(0, len(spans), PIECE)]

    def _piece(self, spans: list[tuple[int, str, int, float, float]]) -> m.Spans:
        lanes, kinds, numbers, began_s, ended_s = zip(*spans, strict=True)
        return m.Spans(
            lanes=lanes, kinds=kinds, numbers=numbers, began_s=began_s, ended_s=ended_s, dropped=self.dropped
        )


def subject(message: Message) -> tuple[str, int] | None:
    """What a message between stages carries, and its number; None for what is not drawn."""
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
        """How wrong `offset_s` can be, twice that where it is 0; infinite before the first exchange."""

    def exchanged(self, sent_s: float, heard_s: float, answered_s: float, back_s: float) -> None:
        """The driver's `sent_s` and `back_s` around the stage's `heard_s` and `answered_s`, each by its own clock."""
        error_s = max(0.0, (back_s - sent_s) - (answered_s - heard_s)) / 2
        if error_s < self.error_s:
            self.error_s = error_s
            self._estimate_s = ((heard_s - sent_s) + (answered_s - back_s)) / 2

    @property
    def offset_s(self) -> float:
        """The stage's clock less the driver's. One that cannot be told from none is none: on one machine both read the
        same clock."""
        return 0.0 if abs(self._estimate_s) <= self.error_s else self._estimate_s
