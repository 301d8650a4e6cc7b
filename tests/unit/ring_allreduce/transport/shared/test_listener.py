"""The reader's end of a channel: what is let go of while it looks is told later, and nothing is lost."""

import socket

import pytest

from ring_allreduce.transport.shared.channel import DESCRIPTOR, MAGIC, RETURNED, Head
from ring_allreduce.transport.shared.listener import IncomingChannel
from ring_allreduce.transport.shared.memory import MappedSlots, SharedSlots
from ring_allreduce.transport.stats import Lane

TOKEN = b"0123456789abcdef"
SMALL, LARGE = 100, 2 << 20


class Connection:
    """The socket of a channel whose sender has said hello; `message` is the next that it says."""

    def __init__(self):
        self.sent, self.full = [], False
        self.message, self.attached = b"", []

    def recv(self, n_bytes):
        return MAGIC + TOKEN + Lane.BULK.value.encode()

    def recvmsg_into(self, buffers, most_attached):
        buffers[0][: len(self.message)] = self.message
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, DESCRIPTOR.pack(one)) for one in self.attached]
        return len(self.message), rights, 0, None

    def send(self, data):
        if self.full:
            raise BlockingIOError
        self.sent.append([number for (number,) in RETURNED.iter_unpack(data)])


class Line:
    """The end of a channel that reads, and what its sender has put into slots."""

    def __init__(self):
        self.connection, self.sender = Connection(), SharedSlots()
        self.reader = IncomingChannel(self.connection, 1 << 30)
        assert self.reader.welcome(TOKEN)

    def holding(self, n_bytes):
        """A new message's slot, and its body."""
        slot, slot_bytes, new = self.sender.put([memoryview(bytes(n_bytes))])
        self.connection.message = Head(slot, slot_bytes, 0, [], [n_bytes]).packed()
        self.connection.attached = [] if new is None else [new]
        return slot, self.reader.receive(bytearray(1000))


@pytest.fixture
def line():
    return Line()


def test_what_is_let_go_of_while_it_is_looked_at_what_was_is_told_the_next_time(line, monkeypatch):
    """As another thread does it, or a collection of garbage in the middle."""
    first, let_go = line.holding(SMALL)
    second, meanwhile = line.holding(LARGE)
    let_go.clear()
    is_large = MappedSlots.is_large

    def looked_at(self, slot):
        meanwhile.clear()
        return is_large(self, slot)

    monkeypatch.setattr(MappedSlots, "is_large", looked_at)
    line.reader.give_back()
    assert line.connection.sent == []  # small memory alone is not worth a message
    line.reader.give_back()
    assert line.connection.sent == [[2, first, second]]
    line.reader.give_back()
    assert len(line.connection.sent) == 1


def test_what_there_was_no_room_to_tell_is_told_later_in_the_same_order(line):
    held = [line.holding(LARGE) for _ in range(3)]
    line.connection.full = True
    for _, views in held[:2]:
        views.clear()
    line.reader.give_back()
    line.connection.full = False
    held[2][1].clear()
    line.reader.give_back()
    assert line.connection.sent == [[3, *(slot for slot, _ in held)]]
