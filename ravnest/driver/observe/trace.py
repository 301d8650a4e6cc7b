"""The timeline of a run as trace.json, which ui.perfetto.dev and chrome://tracing draw.

In: pieces of timelines from the stages, and pairs of clock readings. Out: events in Chrome's trace format. Each stage
is a process row, with a thread for what it computed or waited for, one for what it sent and received, and one for each
of its rings; arrows follow a micro-batch through the stages and back. Spans are kept in columns of some 30 bytes a span
until the end, when the offset of each stage's clock is known best.
"""

import json
import math
from array import array
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from ravnest.driver.observe.record import RunRecord
from ravnest.errors import WrongMessage
from ravnest.pipeline import stage_place
from ravnest.pipeline.time_ledger import WAITS
from ravnest.stage import messages as m
from ravnest.stage.reports import COMPUTE, NETWORK, NUMBERLESS, RINGS, SPANS_A_STAGE, ClockOffset
from ring_allreduce.transport import Message

_MICRO = 1e6
_RING_THREADS = 100
"""How many thread numbers a ring has. Rounds that are in flight at one time lie side by side, each in a thread of its
own."""

_MOST_KINDS = 1000
"""The most kinds of spans that a run has."""

Event = dict[str, object]


class _Rows:
    """One stage's spans, in the order in which they ended."""

    def __init__(self) -> None:
        self.lanes, self.kinds, self.numbers = array("H"), array("H"), array("q")
        self.began_s, self.ended_s = array("d"), array("d")
        self.clock = ClockOffset()
        self.dropped = 0


class RunTrace:
    """The timelines of all stages, until they are written. Only one thread may use it."""

    def __init__(self, nodes: Mapping[str, str]) -> None:
        """`nodes` gives the node of each stage, in the order of the rows."""
        self._nodes = dict(nodes)
        self._rows = {stage: _Rows() for stage in nodes}
        self._kinds: dict[str, int] = {}

    def take(self, stage: str, piece: m.Spans) -> None:
        """Add a piece of a stage's timeline. Raises WrongMessage for a piece whose columns differ in length."""
        rows = self._rows[stage]
        columns = (piece.lanes, piece.kinds, piece.numbers, piece.began_s, piece.ended_s)
        if len({len(column) for column in columns}) != 1:
            raise WrongMessage(stage, "sent a piece of its timeline whose columns differ in length")
        if len(rows.lanes) + len(piece.lanes) > SPANS_A_STAGE or len({*self._kinds, *piece.kinds}) > _MOST_KINDS:
            raise WrongMessage(stage, "sent more of its timeline than a stage keeps")
        rows.lanes.extend(piece.lanes)
        rows.kinds.extend(self._kinds.setdefault(kind, len(self._kinds)) for kind in piece.kinds)
        rows.numbers.extend(piece.numbers)
        rows.began_s.extend(piece.began_s)
        rows.ended_s.extend(piece.ended_s)
        rows.dropped = piece.dropped

    def placed(self, nodes: Mapping[str, str]) -> None:
        """These stages run on these nodes from now on."""
        self._nodes |= nodes

    def draw(self, stage: str, message: Message, now_s: float) -> None:
        """Take what a stage has sent, where it is a piece of its timeline or tells its clock."""
        match message:
            case m.Alive():
                self.heard(stage, message, now_s)
            case m.Spans():
                self.take(stage, message)

    def heard(self, stage: str, alive: m.Alive, now_s: float) -> None:
        """Compare the clock of a stage with the driver's, where its message carries the readings for it."""
        if alive.sent_s is not None and alive.echo_s is not None and alive.heard_s is not None:
            self._rows[stage].clock.exchanged(alive.echo_s, alive.heard_s, alive.sent_s, now_s)

    @property
    def dropped(self) -> int:
        """How many spans the stages have dropped, because they were beyond the limit."""
        return sum(rows.dropped for rows in self._rows.values())

    def write(self, path: Path) -> None:
        """Write everything as one JSON document, with one event a line."""
        with path.open("w", encoding="utf-8") as file:
            file.write('{"displayTimeUnit":"ms","traceEvents":[')
            for number, event in enumerate(self.events()):
                file.write(("," if number else "") + "\n" + json.dumps(event, separators=(",", ":")))
            file.write("\n]}\n")

    def events(self) -> Iterator[Event]:
        """Yields events in Chrome's trace format, with times in microseconds since the earliest span, by the driver's
        clock."""
        names = list(self._kinds)
        starts = [min(rows.began_s) - rows.clock.offset_s for rows in self._rows.values() if rows.began_s]
        zero_s = min(starts, default=0.0)
        for process, (stage, rows) in enumerate(self._rows.items(), start=1):
            yield _named("process_name", process, 0, name=f"{stage} on {self._nodes[stage]}", **_clock(rows.clock))
            yield _named("process_sort_index", process, 0, sort_index=process)
            threads = _ring_threads(rows)
            for thread in sorted({_thread(rows, at, threads) for at in range(len(rows.lanes))}):
                yield _named("thread_name", process, thread, name=_thread_name(thread))
                yield _named("thread_sort_index", process, thread, sort_index=thread)
            shift_s = zero_s + rows.clock.offset_s
            for at, kind in enumerate(rows.kinds):
                began_s, number = rows.began_s[at], rows.numbers[at]
                yield {
                    "ph": "X",
                    "pid": process,
                    "tid": _thread(rows, at, threads),
                    "ts": _us(began_s - shift_s),
                    "dur": _us(rows.ended_s[at] - began_s),
                    **_words(rows.lanes[at], names[kind], number),
                }
        yield from self._arrows(zero_s)

    def _arrows(self, zero_s: float) -> Iterator[Event]:
        """Yields the arrows of each micro-batch: along the forwards in its cluster, then the backwards."""
        ways: defaultdict[tuple[str, int], list[tuple[int, float]]] = defaultdict(list)
        forth = list(enumerate(self._rows.items(), start=1))
        for kind, order in (("forward", forth), ("backward", forth[::-1])):
            code = self._kinds.get(kind, -1)
            for process, (stage, rows) in order:
                cluster, shift_s = stage_place(stage)[0], zero_s + rows.clock.offset_s
                for at, each in enumerate(rows.kinds):
                    if each == code:
                        middle_s = (rows.began_s[at] + rows.ended_s[at]) / 2 - shift_s
                        ways[cluster, rows.numbers[at]].append((process, middle_s))
        for number, ((cluster, micro_batch), steps) in enumerate(ways.items()):
            for place, (process, middle_s) in enumerate(steps if len(steps) > 1 else ()):
                phase = "s" if place == 0 else "f" if place == len(steps) - 1 else "t"
                yield {
                    **{"ph": phase, "bp": "e", "id": number, "pid": process, "tid": COMPUTE, "ts": _us(middle_s)},
                    **{"cat": "way", "name": f"micro-batch {micro_batch} of {cluster}"},
                }


def _us(seconds: float) -> float:
    return round(seconds * _MICRO, 1)


def _named(what: str, process: int, thread: int, **args: object) -> Event:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": args}


def _clock(clock: ClockOffset) -> Event:
    """Return the event that says by how many seconds a stage's times were moved, and how wrong that can be."""
    error_s = clock.error_s if math.isfinite(clock.error_s) else None
    return {"clock_offset_s": clock.offset_s, "clock_error_s": error_s}


def _words(lane: int, kind: str, number: int) -> Event:
    if lane >= RINGS:
        return {"cat": "averaging", "name": f"round {number} {kind}"}
    category = "network" if lane == NETWORK else "wait" if kind in WAITS else "compute"
    text = f"waits: {kind}" if category == "wait" else kind
    return {"cat": category, "name": text} if number == NUMBERLESS else {"cat": category, "name": f"{text} {number}"}


def _ring_threads(rows: _Rows) -> dict[tuple[int, int], int]:
    """Return the thread of each (lane, round): the first of the ring's threads that no other round has at the time."""
    spans: dict[tuple[int, int], tuple[float, float]] = {}
    for lane, number, began_s, ended_s in zip(rows.lanes, rows.numbers, rows.began_s, rows.ended_s, strict=True):
        if lane >= RINGS:
            first_s, _ = spans.get((lane, number), (began_s, ended_s))
            spans[lane, number] = first_s, ended_s
    free_s: dict[int, float] = {}
    threads = {}
    for (lane, number), (began_s, ended_s) in sorted(spans.items(), key=lambda item: item[1]):
        thread = RINGS + (lane - RINGS) * _RING_THREADS
        while free_s.get(thread, -math.inf) > began_s:
            thread += 1
        free_s[thread] = ended_s
        threads[lane, number] = thread
    return threads


def _thread(rows: _Rows, at: int, ring_threads: Mapping[tuple[int, int], int]) -> int:
    lane = rows.lanes[at]
    return lane if lane < RINGS else ring_threads[lane, rows.numbers[at]]


def _thread_name(thread: int) -> str:
    if thread < RINGS:
        return {COMPUTE: "compute", NETWORK: "network"}[thread]
    return f"averaging: ring {(thread - RINGS) // _RING_THREADS}"


def draw(trace: RunTrace | None, path: Path, record: RunRecord) -> None:
    """Write the timeline of a run, if there is one. A disk that refuses it is told of."""
    if trace is None:
        return
    try:
        trace.write(path)
    except OSError as error:
        record.notice(f"{path}: cannot be written: {error.strerror or error}")
    else:
        record.timeline(trace.dropped)
