from collections.abc import Iterator

import pytest
import torch

from experiments.collaboration.virtual_network import VirtualNetwork
from ring_allreduce.errors import DeadlinePassed
from ring_allreduce.transport import Codec, Count, LineClosed, LineEvent, LineOpened, LineSaid, Message


class Word(Message, frozen=True, kw_only=True, tag="word"):
    number: Count


CODEC, TOKEN = Codec([Word]), b"t" * 16


@pytest.fixture
def net() -> Iterator[VirtualNetwork]:
    network = VirtualNetwork(latency_s=0.5)
    yield network
    network.close()


class Pair:
    """A machine that listens and keeps what it hears, and one that dials and says words."""

    def __init__(self, net: VirtualNetwork, words: int = 2) -> None:
        self.net, self.heard, self.told = net, list[tuple[float, LineEvent]](), list[LineEvent]()
        self.listener = net.start("listener", self._listen, 1e6, 1e6)
        self.speaker = net.start("speaker", lambda: self._speak(words), 1000.0, 1e6)

    def _listen(self) -> None:
        lines = self.net.lines(CODEC, TOKEN, listen=("", 7, None))
        while True:
            self.heard += [(self.net.now(), event) for event in lines.take(1000.0)]

    def _speak(self, words: int) -> None:
        lines = self.net.lines(CODEC, TOKEN)
        line = lines.dial("", 7, None, "listener", 10.0)
        for number in range(words):
            lines.send(line, Word(number=number), (torch.zeros(250),))  # a second each at 1,000 bytes per second
        self.told += lines.take(100.0)

    def words(self) -> list[int]:
        said = [event.message for _, event in self.heard if isinstance(event, LineSaid)]
        return [message.number for message in said if isinstance(message, Word)]


def test_messages_take_what_links_and_latency_say_and_come_in_order(net: VirtualNetwork) -> None:
    pair = Pair(net)
    assert net.run(lambda: len(pair.words()) == 2, 100.0)
    opened, first, second = [at_s for at_s, event in pair.heard]
    assert isinstance(pair.heard[0][1], LineOpened)
    assert first - opened == pytest.approx(1.5, abs=0.15)
    assert second - first == pytest.approx(1.0, abs=0.1)
    assert pair.words() == [0, 1]


def test_what_a_slow_uplink_has_not_sent_keeps_nobody_else_from_the_receiver(net: VirtualNetwork) -> None:
    pair, came_s = Pair(net, words=9), list[float]()

    def speak() -> None:
        lines = net.lines(CODEC, TOKEN)
        net.sleep(3.0)  # the slow one has begun to send
        lines.send(lines.dial("", 7, None, "listener", 10.0), Word(number=100))
        came_s.append(net.now())
        net.sleep(100.0)

    net.start("fast", speak, 1e6, 1e6)
    assert net.run(lambda: 100 in pair.words(), 100.0)
    assert net.now_s < came_s[0] + 1.0
    assert len(pair.words()) < 9


def test_what_a_program_has_sent_arrives_when_it_ends(net: VirtualNetwork) -> None:
    pair = Pair(net, words=5)
    assert net.run(lambda: isinstance(pair.heard[-1][1] if pair.heard else None, LineClosed), 200.0)
    assert pair.words() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("told", "hears"), [(True, True), (False, False)])
def test_a_killed_machine_says_nothing_more_and_is_heard_of_only_if_told(
    net: VirtualNetwork, told: bool, hears: bool
) -> None:
    pair = Pair(net)
    net.run(lambda: bool(pair.words()), 100.0)
    net.kill(pair.speaker, told=told)
    net.run(lambda: False, net.now_s + 50.0)
    assert any(isinstance(event, LineClosed) for _, event in pair.heard) == hears
    assert pair.speaker.error is None


def test_a_frame_of_other_bytes_ends_its_line_and_is_not_heard(net: VirtualNetwork) -> None:
    pair = Pair(net)
    pair.speaker.garble = True
    net.run(lambda: bool(pair.told), 100.0)
    assert pair.words() == []
    assert isinstance(pair.told[0], LineClosed)


def test_a_machine_that_stands_still_hears_later(net: VirtualNetwork) -> None:
    pair = Pair(net)
    net.run(lambda: bool(pair.words()), 100.0)
    pair.listener.still_until_s = net.now_s + 30.0
    net.run(lambda: len(pair.words()) == 2, 100.0)
    assert pair.heard[-1][0] >= pair.listener.still_until_s


def test_nobody_listening_is_a_deadline_passed(net: VirtualNetwork) -> None:
    machine = net.start("alone", lambda: net.lines(CODEC, TOKEN).dial("", 9, None, "x", 5.0), 1e6, 1e6)
    net.run(lambda: not machine.alive, 100.0)
    assert isinstance(machine.error, DeadlinePassed)
