"""Lines, whose sockets belong to a thread of their own, beside threads that use them, in orders that a seed chooses.

The thread of a `Lines` is one more body of the schedule, and its selector gives way instead of waiting. Connections are
socket pairs of this process, so nothing happens but what the schedule lets happen.
"""

import contextlib
import selectors
import socket
import threading
from collections.abc import Callable
from unittest import mock

import torch

from ring_allreduce.errors import TransportError
from ring_allreduce.transport import Codec, KeyPair, Keys, LineClosed, LineSaid, Message, lines
from ring_allreduce.transport.lines import LineEvent, Lines
from tests.races.interleaving import Interleaving

KEYS = Keys(KeyPair.make(), {})

PATIENCE = 100
"""How often who waits with a time-out lets others go on."""


class Number(Message, frozen=True, kw_only=True, tag="number"):
    """So many messages came before it, from one thread."""

    number: int


class Served:
    """The lines of both ends of connections inside this process. Their own threads are those of the schedule."""

    def __init__(self, schedule: Interleaving) -> None:
        self.bodies: list[Callable[[], None]] = []

        class Selector(selectors.SelectSelector):
            """Who waits lets others go on: for ever, or PATIENCE times where there is a time-out."""

            def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
                waited = 0
                while not (ready := super().select(0)) and (timeout is None or waited < PATIENCE):
                    schedule.give_way()
                    waited += 1
                return ready

        with (
            schedule.locks(),
            mock.patch.object(threading, "Thread", schedule.thread_class(self.bodies)),
            mock.patch.object(selectors, "DefaultSelector", Selector),
        ):
            self.here, self.there = (Lines(Codec([Number]), bytes(16)) for _ in range(2))

    def connect(self) -> int:
        """Open a line between both, before there is a schedule; returns its number, the same at both."""
        here, there = socket.socketpair()
        numbers = {self.dial(self.here, here), self.dial(self.there, there)}
        assert len(numbers) == 1
        return numbers.pop()

    def dial(self, of: Lines, connection: socket.socket) -> int:
        """Open a line over a connection that is there; by one thread at a time."""
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # so that a message goes in several parts
        with mock.patch.object(lines, "EncryptedStream", return_value=connection):
            return of.dial("", 0, KEYS, "", 0.0)


def run(schedule: Interleaving, *bodies: Callable[[], None]) -> None:
    """Time stands still: lines that end send what is queued, whatever the other end's turns take on this machine."""
    with mock.patch.object(lines, "time", mock.Mock(monotonic=lambda: 0.0)):
        schedule.run(*bodies)


def numbers_of(events: list[LineEvent], line: int, parts: bool) -> list[int]:
    return [
        one.message.number
        for one in events
        if isinstance(one, LineSaid) and one.line == line and bool(one.tensors) == parts
        if isinstance(one.message, Number)
    ]


def lines_that_two_threads_use_while_they_end(seed: int) -> None:
    """Two threads send on a line, a third one takes at the other end, two threads own the sockets. Another line is
    hung up, whose last words still come."""
    schedule = Interleaving(seed, [lines])
    served = Served(schedule)
    here, there, sent = served.here, served.there, threading.Semaphore(0)
    line, other = served.connect(), served.connect()
    taken: list[LineEvent] = []

    def send() -> None:
        for number in range(3):
            here.send(line, Number(number=number), [torch.zeros(1500)])
        sent.release()

    def send_and_end() -> None:
        for number in range(3):
            here.send(other, Number(number=number))
            here.send(line, Number(number=number))
        here.hang_up(other, "enough")
        while not sent.acquire(blocking=False):
            schedule.give_way()
        here.close()

    def take() -> None:
        while sum(isinstance(one, LineClosed) for one in taken) < 2:
            taken.extend(there.take(0.0))
            schedule.give_way()
        there.close()

    run(schedule, *served.bodies, send, send_and_end, take)
    assert numbers_of(taken, line, parts=True) == numbers_of(taken, line, parts=False) == [0, 1, 2]
    assert numbers_of(taken, other, parts=False) == [0, 1, 2]
    assert sorted(one.line for one in here.take(0.0) if isinstance(one, LineClosed)) == [line, other]


def lines_that_are_dialled_while_they_end(seed: int) -> None:
    """What is dialled at the end is ended with the others, or was never there."""
    schedule = Interleaving(seed, [lines])
    served = Served(schedule)
    here, there = served.here, served.there
    opened: list[int] = []
    connections = [socket.socketpair() for _ in range(2)]

    def dial() -> None:
        with contextlib.suppress(TransportError):
            for connection, _ in connections:
                opened.append(served.dial(here, connection))
                here.send(opened[-1], Number(number=0))

    def end() -> None:
        here.close()
        there.close()

    run(schedule, *served.bodies, dial, end)
    ended = here.take(0.0)
    assert [one.line for one in ended if isinstance(one, LineClosed)] == opened
    assert connections[0][0].fileno() == -1
    for _, other_end in connections:
        other_end.close()


def last_words_before_lines_are_hung_up(seed: int) -> None:
    """Whatever the owner of the sockets is doing, what was queued before the word to hang up is sent."""
    schedule = Interleaving(seed, [lines])
    served = Served(schedule)
    numbers = [served.connect() for _ in range(4)]
    taken: list[LineEvent] = []

    def say() -> None:
        for line in numbers:
            served.here.send(line, Number(number=0))
            served.here.send(line, Number(number=1))
            served.here.hang_up(line, "enough")
        served.here.close()

    def take() -> None:
        while sum(isinstance(one, LineClosed) for one in taken) < len(numbers):
            taken.extend(served.there.take(0.0))
            schedule.give_way()
        served.there.close()

    run(schedule, *served.bodies, say, take)
    for line in numbers:
        assert numbers_of(taken, line, parts=False) == [0, 1]
