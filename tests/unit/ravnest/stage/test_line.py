"""The line between a stage and its starter."""

import threading
from typing import cast

import pytest

from ravnest.stage.line import Line


class Ends:
    """A socket that gives back what was sent, in pieces of at most three bytes, and then ends."""

    def __init__(self) -> None:
        self.sent = b""

    def sendall(self, data: bytes) -> None:
        self.sent += data

    def recv(self, most: int) -> bytes:
        part, self.sent = self.sent[: min(most, 3)], self.sent[min(most, 3) :]
        return part


def test_messages_come_whole_and_in_order_and_the_end_is_told() -> None:
    line = Line(cast("object", Ends()))  # type: ignore[arg-type]
    for message in (b"one", b"", b"x" * 1000):
        line.send(message)
    assert [line.receive() for _ in range(3)] == [b"one", b"", b"x" * 1000]
    with pytest.raises(EOFError):
        line.receive()


def test_a_message_that_is_cut_off_is_the_end() -> None:
    ends = Ends()
    line = Line(cast("object", ends))  # type: ignore[arg-type]
    line.send(b"whole")
    ends.sent = ends.sent[:-1]
    with pytest.raises(EOFError):
        line.receive()


def test_two_threads_send_whole_messages() -> None:
    ends = Ends()
    line = Line(cast("object", ends))  # type: ignore[arg-type]
    threads = [threading.Thread(target=line.send, args=(bytes([number]) * 50,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert {line.receive() for _ in threads} == {bytes([number]) * 50 for number in range(8)}
