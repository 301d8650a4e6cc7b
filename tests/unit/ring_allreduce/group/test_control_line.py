"""A member's line to its rendezvous, over a pipe in the place of a connection."""

import os
import socket
import threading

import pytest

from ring_allreduce.errors import DeadlinePassed, PeerLost
from ring_allreduce.group import control_line
from ring_allreduce.group import control_messages as c
from ring_allreduce.group.control_line import ControlLine, reach
from ring_allreduce.group.liveness import Report

RESUMED = c.CommittedMessage(epoch=1, round=1), c.CommittedMessage(epoch=1, round=2)


class PipeConnection:
    """What the line uses of a socket: `write` is the rendezvous, `sent` is what it hears."""

    family = socket.AF_UNIX

    def __init__(self):
        self._read, self._write = os.pipe()
        self.sent = bytearray()
        self.came = threading.Event()
        self.broken = False
        self.open = True

    def write(self, data):
        os.write(self._write, data)

    def hang_up(self):
        os.close(self._write)

    def fileno(self):
        return self._read

    def recv(self, size):
        return os.read(self._read, size)

    def sendall(self, data):
        if self.broken:
            raise BrokenPipeError("broken pipe")
        self.sent += data
        self.came.set()

    def heard(self):
        """The messages sent so far."""
        return c.FrameReader().feed(bytes(self.sent))

    def settimeout(self, timeout_s):
        pass

    def shutdown(self, how):
        pass

    def close(self):
        if self.open:
            self.open = False
            os.close(self._read)


@pytest.fixture
def connection():
    connection = PipeConnection()
    yield connection
    connection.close()


def test_messages_come_in_order_and_none_when_none_came(connection):
    line = ControlLine(connection)
    assert line.next() is None
    connection.write(b"".join(c.framed(message) for message in RESUMED))
    assert [line.next(1.0), line.next(1.0), line.next()] == [*RESUMED, None]


def test_an_answer_to_a_sign_of_life_is_no_message_but_is_heard(connection):
    line = ControlLine(connection)
    before_s = line.heard_s
    connection.write(c.framed(c.HeardMessage()))
    assert line.next() is None
    assert line.heard_s > before_s


@pytest.mark.parametrize(("last", "reason"), [(b"", "its connection closed"), (b"\xff" * 8, "its connection broke")])
def test_a_dead_line_says_so_at_every_call_after_what_came_before(connection, last, reason):
    line = ControlLine(connection)
    connection.write(c.framed(RESUMED[0]))
    assert line.next() == RESUMED[0]
    connection.write(last)
    connection.hang_up()
    for _ in range(2):
        with pytest.raises(PeerLost, match=reason):
            line.next(1.0)


def test_a_broken_line_is_a_lost_rendezvous_unless_it_was_the_last_word(connection):
    line, leaving = ControlLine(connection), c.LeavingMessage(reason="done")
    line.tell(leaving)
    assert connection.heard() == [leaving]
    connection.broken = True
    line.farewell(leaving)
    with pytest.raises(PeerLost, match="its connection broke"):
        line.tell(leaving)


def test_signs_of_life_carry_the_report_until_the_line_is_closed(connection):
    line = ControlLine(connection)
    line.report = Report(epoch=3, round=7)
    line.give_signs(0.001)
    assert connection.came.wait(10.0)
    line.close()
    line.close()
    assert set(connection.heard()) == {c.AliveMessage(report=line.report)}


def test_a_rendezvous_that_is_not_there_is_named_once_the_time_is_over(monkeypatch):
    def refuse(address, timeout):
        raise ConnectionRefusedError("connection refused")

    monkeypatch.setattr(control_line.socket, "create_connection", refuse)
    with pytest.raises(DeadlinePassed, match=r"desk:29500.*refused"):
        reach("desk", 29500, 0.0)


def test_the_connection_to_a_rendezvous_that_listens_is_given(monkeypatch, connection):
    monkeypatch.setattr(control_line.socket, "create_connection", lambda address, timeout: connection)
    assert reach("desk", 29500, 1.0) is connection
