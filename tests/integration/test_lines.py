"""Lines over real sockets, used by those who have a key and mean no good: nothing is held without bound, no line ends
another, and the thread that owns the sockets lives on."""

import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch

from ring_allreduce.transport import Codec, KeyPair, Keys, LineClosed, LineOpened, Lines, LineSaid, Message, lines
from ring_allreduce.transport.lines import LEAST_BYTES, LineEvent

pytestmark = pytest.mark.timeout(120)

TOKEN, WAIT_S = bytes(16), 30.0
PAIRS = {name: KeyPair.make() for name in ("host", "guest")}
ALLOWED = {name: pair.public for name, pair in PAIRS.items()}
MIB = 1 << 20


class Word(Message, frozen=True, kw_only=True, tag="word"):
    """Something is said."""


def made(**limits: int) -> Lines:
    return Lines(Codec([Word]), TOKEN, listen=("127.0.0.1", 0, Keys(PAIRS["host"], ALLOWED)), **limits)


def dialled(guest: Lines, host: Lines) -> int:
    assert host.port is not None
    return guest.dial("127.0.0.1", host.port, Keys(PAIRS["guest"], ALLOWED), "host", WAIT_S)


def taken(of: Lines, done: Callable[[list[LineEvent]], object]) -> list[LineEvent]:
    found, ends_s = list[LineEvent](), time.monotonic() + WAIT_S
    while not done(found):
        assert time.monotonic() < ends_s, found
        found += of.take(0.05)
    return found


@pytest.fixture
def guest() -> Iterator[Lines]:
    here = Lines(Codec([Word]), TOKEN, max_message_bytes=8 * MIB)
    yield here
    here.close()


def closed(events: list[LineEvent]) -> list[LineClosed]:
    return [one for one in events if isinstance(one, LineClosed)]


def test_all_lines_together_hold_so_much_and_the_one_that_holds_most_ends(guest: Lines) -> None:
    host = made(max_message_bytes=8 * MIB, most_bytes=12 * MIB)
    try:
        for _ in range(4):
            dialled(guest, host)
        opened = taken(host, lambda events: len(events) == 4)
        for one in opened:
            assert isinstance(one, LineOpened)
            host.trust(one.line)
        for line, size in zip(range(4), (5, 5, 1, 5), strict=True):  # nobody takes what comes
            guest.send(line, Word(), [torch.zeros(size * MIB, dtype=torch.uint8)])
        ends = closed(taken(guest, closed))
        assert [one.line for one in ends] != [2]
        found = taken(host, closed)
        assert "hold" in closed(found)[0].reason
        guest.send(2, Word())  # the others go on
        taken(host, lambda events: [one for one in events if isinstance(one, LineSaid) and not one.tensors])
    finally:
        host.close()


def test_what_was_taken_is_held_no_longer(guest: Lines) -> None:
    host = made(most_bytes=8 * MIB)
    try:
        line = dialled(guest, host)
        (opened,) = taken(host, lambda events: events)
        host.trust(opened.line)
        for size in [0, MIB] * 20:
            guest.send(line, Word(), [torch.zeros(size, dtype=torch.uint8)])
            (said,) = taken(host, lambda events: events)
            assert isinstance(said, LineSaid)
            host.send(opened.line, Word(), said.tensors)
            (said,) = taken(guest, lambda events: events)
            assert isinstance(said, LineSaid)
    finally:
        host.close()


def test_many_small_messages_that_nobody_takes_count_for_what_they_hold(guest: Lines) -> None:
    host = made(most_unread_bytes=64 * LEAST_BYTES)
    try:
        line = dialled(guest, host)
        (opened,) = taken(host, lambda events: events)
        host.trust(opened.line)
        for _ in range(200):
            guest.send(line, Word())
        taken(guest, closed)
        said = [one for one in taken(host, closed) if isinstance(one, LineSaid)]
        assert len(said) <= 64
    finally:
        host.close()


def test_lines_that_are_used_at_once_end_no_other_however_threads_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    def stream(*_: object) -> socket.socket:
        near, far = socket.socketpair()
        far.close()
        return near

    monkeypatch.setattr(lines, "EncryptedStream", stream)
    here, before = Lines(Codec([Word]), TOKEN), sys.getswitchinterval()

    def use() -> None:
        for number in range(1000):
            line = here.dial("", 1, Keys(PAIRS["guest"], ALLOWED), "host", 1.0)
            here.send(line, Word())
            if number % 2:
                here.hang_up(line, "done")

    threads = [threading.Thread(target=use) for _ in range(4)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        ended = len(closed(taken(here, lambda found: len(closed(found)) == 4000)))
    finally:
        sys.setswitchinterval(before)
        for thread in threads:
            thread.join()
        here.close()
    assert ended == 4000


def test_the_last_words_of_who_goes_are_heard_though_something_is_said_to_it_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair = socket.socketpair()

    class Near(socket.socket):
        """Before it sends anything, the other end says its last word and goes."""

        def send(self, *data: object) -> int:
            there.send(0, Word())
            there.close()
            return super().send(*data)  # type: ignore[arg-type]

    ends = iter([Near(fileno=pair[0].detach()), pair[1]])
    monkeypatch.setattr(lines, "EncryptedStream", lambda *_: next(ends))
    here, there = Lines(Codec([Word]), TOKEN), Lines(Codec([Word]), TOKEN)
    try:
        for one in (here, there):
            assert one.dial("", 1, Keys(PAIRS["guest"], ALLOWED), "host", 1.0) == 0
        here.send(0, Word())
        assert [type(event) for event in taken(here, closed)] == [LineSaid, LineClosed]
    finally:
        here.close()
        there.close()


def test_what_is_queued_is_sent_at_the_end_however_much_comes_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = socket.socketpair()
    for one in pair:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    monkeypatch.setattr(lines, "EncryptedStream", lambda *_: pair[0])
    monkeypatch.setattr(lines, "LINGER_S", 60.0)  # a loaded core takes more than the usual 2 s for all these turns
    here = Lines(Codec([Word]), TOKEN)
    here.dial("", 1, Keys(PAIRS["guest"], ALLOWED), "host", 1.0)
    here.send(0, Word(), [torch.zeros(100_000, dtype=torch.uint8)])
    ending = threading.Thread(target=here.close)
    ending.start()
    try:
        for data in struct.pack(">I", 1 << 20) + bytes(200):  # of a long message, and each a turn of who sends
            pair[1].sendall(bytes([data]))
            time.sleep(0.001)
        heard = 0
        while more := pair[1].recv(1 << 16):
            heard += len(more)
        assert heard > 100_000
    finally:
        ending.join(WAIT_S)
        pair[1].close()
