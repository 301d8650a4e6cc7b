"""Programs that wait on lines, under a virtual clock: each runs in a thread of its own, and only one of them at a time.

In: functions that open `Lines` and wait on them, and the links of the machines that they run on. Out: the same results
each time. What is sent is sealed and opened by the real envelope, and takes as long as the links say; computing takes
what `sleep` is told. A function that has done its part hands on in `take` and `sleep`, and nowhere else, so nothing is
ever changed by two threads at once. Faults are injected here: a machine dies, stands still, loses its connections, or
says something else than what its program said.
"""

import heapq
import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ring_allreduce.errors import DeadlinePassed, InvalidMessage
from ring_allreduce.transport import Codec, LineClosed, LineEvent, LineOpened, LineSaid, Message
from ring_allreduce.transport.envelope import Envelope

MOST_BYTES = 4 << 20
LEAST_TURN_S = 1e-5
"""What looking for events takes: else a program that never waits would stop the clock."""

HANDSHAKE_S = 15.0


class Ended(BaseException):
    """The machine has died: its program runs no further. No `except Exception` catches it."""


Said = tuple[Message, tuple[Tensor, ...]]


@dataclass(eq=False)
class Machine:
    """One machine, its link (bytes per second, each way) and the program that it runs."""

    name: str
    up_bytes_per_s: float
    down_bytes_per_s: float
    lines: "list[VirtualLines]" = field(default_factory=list)
    alive: bool = True
    killed: bool = False
    still_until_s: float = 0.0
    """It stands still so long: nothing runs, nothing is lost."""
    tamper: Callable[[Said], Said] | None = None
    """What it says instead of what its program says."""
    garble: bool = False
    """Its next frame arrives with other bytes."""
    cannot_reach: frozenset[int] = frozenset()
    """Ports that it finds closed, whoever listens there."""
    watch: Callable[[str, Message], None] | None = None
    """Is told what it sends ("out") and what reaches it ("in"), before that happens."""
    up_free_s: float = 0.0
    down_free_s: float = 0.0
    waits: int | None = None
    error: BaseException | None = None
    thread: threading.Thread | None = None
    go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))


class VirtualNetwork:
    """All machines, and the clock. `run` is called by the thread that made it."""

    def __init__(self, latency_s: float = 0.02) -> None:
        self.now_s = 0.0
        self.latency_s = latency_s
        self.machines: list[Machine] = []
        self.bytes = 0
        """That were sent on all lines."""
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count(1)
        self._main = threading.Semaphore(0)
        self._of_thread: dict[int, Machine] = {}
        self.listening: dict[int, VirtualLines] = {}

    # For programs.

    def now(self) -> float:
        """The clock, in seconds."""
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """Let so long pass for the machine that calls."""
        machine = self.here()
        until_s = self.now_s + max(seconds, LEAST_TURN_S)
        while self.now_s < until_s:
            self._pause(machine, until_s)

    def lines(self, codec: Codec, token: bytes, *, listen: Any = None) -> "VirtualLines":
        """What `Lines(...)` is for a program on a machine of this network."""
        machine = self.here()
        opened = VirtualLines(self, machine, Envelope(codec, token, MOST_BYTES), None if listen is None else listen[1])
        machine.lines.append(opened)
        return opened

    def here(self) -> Machine:
        """The machine whose program calls."""
        return self._of_thread[threading.get_ident()]

    # For whoever directs the play.

    def start(
        self, name: str, program: Callable[[], object], up_bytes_per_s: float, down_bytes_per_s: float
    ) -> Machine:
        """A new machine runs a program, from now on."""
        machine = Machine(name, up_bytes_per_s, down_bytes_per_s)

        def body() -> None:
            machine.go.acquire()
            self._of_thread[threading.get_ident()] = machine
            try:
                if machine.alive:
                    program()
            except Ended:
                pass
            except BaseException as error:  # noqa: BLE001 - is kept for whoever looks
                machine.error = error
            finally:
                self._of_thread.pop(threading.get_ident(), None)
                if machine.alive:  # what it has sent still arrives
                    machine.alive = False
                    for lines in machine.lines:
                        lines.close()
                self._main.release()

        machine.thread = threading.Thread(target=body, name=name, daemon=True)
        machine.thread.start()
        self.machines.append(machine)
        machine.waits = next(self._numbers)
        self._wake_at(machine, 0.0)
        return machine

    def at(self, after_s: float, happens: Callable[[], None]) -> None:
        """Something happens after so many seconds."""
        heapq.heappush(self._queue, (self.now_s + after_s, next(self._numbers), happens))

    def run(self, until: Callable[[], bool], most_s: float) -> bool:
        """Let time pass until something holds; returns whether it does before `most_s` of the clock."""
        while not until():
            if not self._queue or self._queue[0][0] > most_s:
                return False
            due_s, _, happens = heapq.heappop(self._queue)
            self.now_s = max(self.now_s, due_s)
            happens()
        return True

    def kill(self, machine: Machine, *, told: bool = True) -> None:
        """The machine dies. `told`: its connections end at once, as when a process is killed; else nobody hears."""
        if machine.alive:
            self._end(machine, told=told)
            if machine.waits is not None:
                self._wake_at(machine, 0.0)

    def cut(self, machine: Machine, reason: str = "its connection broke") -> None:
        """All connections of the machine end; it may open others."""
        for lines in machine.lines:
            lines.end_all(reason)

    def close(self) -> None:
        """End all programs, so that no thread is left."""
        for machine in self.machines:
            self.kill(machine, told=False)
        self.run(lambda: not any(one.thread is not None and one.thread.is_alive() for one in self.machines), 1e18)

    # Inside.

    def _end(self, machine: Machine, *, told: bool) -> None:
        machine.alive, machine.killed = False, True
        for lines in machine.lines:
            if lines.port is not None:
                self.listening.pop(lines.port, None)
            if told:
                lines.end_all("it has left, or its process died")

    def _wake_at(self, machine: Machine, after_s: float) -> None:
        ticket = machine.waits

        def wake() -> None:
            if machine.waits != ticket or ticket is None:
                return
            if machine.alive and machine.still_until_s > self.now_s:
                self.at(machine.still_until_s - self.now_s, wake)
                return
            machine.waits = None
            machine.go.release()
            self._main.acquire()

        self.at(after_s, wake)

    def _pause(self, machine: Machine, until_s: float) -> None:
        machine.waits = next(self._numbers)
        self._wake_at(machine, until_s - self.now_s)
        self._main.release()
        machine.go.acquire()
        if not machine.alive:
            raise Ended

    def wait_for(self, lines: "VirtualLines", timeout_s: float) -> None:
        """Wait until a line has something to say, or for so long."""
        machine, until_s = self.here(), self.now_s + max(timeout_s, LEAST_TURN_S)
        while not lines.events and self.now_s < until_s:
            self._pause(machine, until_s)

    def wake(self, machine: Machine) -> None:
        """Something has come for a machine that may wait for it."""
        if machine.waits is not None:
            self._wake_at(machine, 0.0)


@dataclass(eq=False)
class _Side:
    """One side of a line."""

    number: int
    lines: "VirtualLines"
    other: "_Side | None" = None
    open: bool = True
    hangs_up: bool = False


class VirtualLines:
    """Stands in for `Lines` on one machine."""

    def __init__(self, network: VirtualNetwork, machine: Machine, envelope: Envelope, port: int | None) -> None:
        self.network, self.machine, self.envelope = network, machine, envelope
        self.port = port
        self.events: deque[LineEvent] = deque()
        self.sides: dict[int, _Side] = {}
        self._numbers = itertools.count(1)
        if port is not None:
            network.listening[port] = self

    def dial(self, host: str, port: int, keys: object, peer: str, timeout_s: float) -> int:
        """Raises DeadlinePassed where nobody listens."""
        net = self.network
        net.sleep(3 * net.latency_s)
        there = None if port in self.machine.cannot_reach else net.listening.get(port)
        if there is None or there.machine.still_until_s > net.now_s:
            net.sleep(0.0 if there is None else min(timeout_s, HANDSHAKE_S))
            raise DeadlinePassed(f"a handshake with {host}:{port}", timeout_s)
        mine, other = self._added(), there._added()
        mine.other, other.other = other, mine
        there.put(LineOpened(other.number, "guest"))
        return mine.number

    def send(self, line: int, message: Message, tensors: Sequence[Tensor] = ()) -> None:
        """Queue a message for a line; for one that has ended it is lost."""
        side = self.sides.get(line)
        if side is None or not side.open or side.other is None:
            return
        net, here, other = self.network, self.machine, side.other
        if here.watch is not None:
            here.watch("out", message)
        if here.tamper is not None:
            message, tensors = here.tamper((message, tuple(tensors)))
        sealed, n_bytes = self.envelope.seal("line", 0, message, tensors)
        frames = [bytearray(part) for part in sealed]
        if here.garble:
            here.garble = False
            frames[0][: len(frames[0]) // 2] = b"\x5a" * (len(frames[0]) // 2)
        net.bytes += n_bytes
        there = other.lines.machine
        here.up_free_s = max(net.now_s, here.up_free_s) + n_bytes / here.up_bytes_per_s

        def comes() -> None:  # what is still on its way keeps nobody else's messages from the receiver's link
            there.down_free_s = max(net.now_s, there.down_free_s) + n_bytes / there.down_bytes_per_s
            net.at(there.down_free_s - net.now_s, lambda: self._arrive(side, frames))

        net.at(here.up_free_s + net.latency_s - net.now_s, comes)

    def take(self, timeout_s: float) -> list[LineEvent]:
        """What has happened; waits for at most so long when nothing has."""
        self.network.wait_for(self, timeout_s)
        taken = list(self.events)
        self.events.clear()
        return taken

    def trust(self, line: int) -> None:
        """Lengths of frames before and after this are a matter of the real lines' tests."""

    def hang_up(self, line: int, reason: str) -> None:
        """End a line once all that is queued has arrived."""
        side, net = self.sides.get(line), self.network
        if side is None or side.other is None:
            return
        there = side.other.lines.machine

        def comes() -> None:  # behind what is on its way through the receiver's link
            wait_s = max(0.0, there.down_free_s - net.now_s) + net.latency_s
            net.at(wait_s, lambda: self._end_side(side, reason))

        net.at(max(0.0, self.machine.up_free_s - net.now_s) + net.latency_s, comes)

    def close(self) -> None:
        """End all lines once what is queued has arrived."""
        if not self.machine.alive and self.machine.killed:
            return
        if self.port is not None:
            self.network.listening.pop(self.port, None)
        for line in list(self.sides):
            self.hang_up(line, "it has left, or its process died")

    def end_all(self, reason: str) -> None:
        """End all lines now; both sides hear of it."""
        for side in list(self.sides.values()):
            self._end_side(side, reason)

    def end(self, line: int, reason: str) -> None:
        """End one line now; both sides hear of it."""
        self._end_side(self.sides[line], reason)

    def put(self, event: LineEvent) -> None:
        """Something has happened on a line of this machine."""
        if self.machine.alive:
            self.events.append(event)
            self.network.wake(self.machine)

    def _added(self) -> _Side:
        side = _Side(next(self._numbers), self)
        self.sides[side.number] = side
        return side

    def _arrive(self, side: _Side, frames: list[bytearray]) -> None:
        other = side.other
        if other is None or not other.open or not other.lines.machine.alive:
            return
        try:
            opened = other.lines.envelope.open([memoryview(part) for part in frames])
        except InvalidMessage as error:
            self._end_side(side, f"it sent what is no message ({error})")
            return
        there = other.lines.machine
        if there.watch is not None:
            there.watch("in", opened.message)
        if other.open:  # else whoever watched has ended it
            other.lines.put(LineSaid(other.number, opened.message, opened.tensors))

    def _end_side(self, side: _Side, reason: str) -> None:
        for one in (side, side.other):
            if one is not None and one.open:
                one.open = False
                one.lines.sides.pop(one.number, None)
                closed = LineClosed(one.number, reason)
                self.network.at(self.network.latency_s, lambda one=one, closed=closed: one.lines.put(closed))  # type: ignore[misc]
