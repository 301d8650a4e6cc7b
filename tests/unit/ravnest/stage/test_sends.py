import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ravnest.stage import messages as m
from ravnest.stage.sends import Sends
from ring_allreduce import PeerStalled
from ring_allreduce.transport import InProcessNetwork, TransportLimits


class Woken:
    """An endpoint that counts its wakes."""

    def __init__(self, endpoint):
        self.endpoint, self.wakes = endpoint, 0

    def send(self, *args):
        self.endpoint.send(*args)

    def wake(self):
        self.wakes += 1


@pytest.fixture
def made():
    network = InProcessNetwork(now=lambda: 0.0)
    peer, mine = network.endpoint("peer", m.codec()), Woken(network.endpoint("mine", m.codec()))
    network.connect_all()
    heard = []
    with ThreadPoolExecutor(1) as aside:  # a stage is assembled beside the thread that turns it
        on_sent = lambda message, began_s: heard.append((message, began_s))  # noqa: E731
        sends = aside.submit(Sends, mine, on_sent, lambda: 7.0).result(10.0)
    sends.flush()
    return sends, mine, peer, heard


def from_another_thread(sends, *messages):
    thread = threading.Thread(target=lambda: [sends.send("peer", message) for message in messages])
    thread.start()
    thread.join(10.0)


def numbers(peer):
    return [delivery.message.update for delivery in peer.poll(0.0)]


def test_who_flushes_owns_the_endpoint_whoever_made_it_and_sends_at_once(made):
    sends, mine, peer, heard = made
    sends.send("peer", m.GlobalNorm(update=1, norm_sq=2.0))
    assert numbers(peer) == [1]
    assert [(message.update, began_s) for message, began_s in heard] == [(1, 7.0)]
    assert mine.wakes == 0


def test_what_another_thread_sends_waits_for_the_owner_who_is_woken(made):
    sends, mine, peer, heard = made
    from_another_thread(sends, m.GlobalNorm(update=1, norm_sq=2.0), m.GlobalNorm(update=2, norm_sq=2.0))
    assert (numbers(peer), heard, mine.wakes) == ([], [], 2)
    sends.flush()
    assert numbers(peer) == [1, 2]
    sends.flush()
    assert numbers(peer) == []


def test_what_waits_leaves_before_what_the_owner_sends(made):
    sends, _, peer, _ = made
    from_another_thread(sends, m.GlobalNorm(update=1, norm_sq=2.0))
    sends.send("peer", m.GlobalNorm(update=2, norm_sq=2.0))
    assert numbers(peer) == [1, 2]


def test_a_driver_that_takes_nothing_stops_nobody_and_misses_nothing():
    """It stands still, for instance: its silence ends the stage if it lasts, and not a full queue."""
    network = InProcessNetwork(now=lambda: 0.0, limits=TransportLimits(queue_messages=3))
    driver, peer = network.endpoint(m.DRIVER, m.codec()), network.endpoint("peer", m.codec())
    mine = Woken(network.endpoint("mine", m.codec()))
    network.connect_all()
    sent = []
    sends = Sends(mine, lambda message, began_s: sent.append(message), lambda: 7.0)
    sends.flush()
    for number in range(8):
        sends.tell(m.GlobalNorm(update=number, norm_sq=2.0))
    sends.send("peer", m.GlobalNorm(update=99, norm_sq=2.0))
    assert numbers(peer) == [99]
    assert sends.waiting == 5
    heard = []
    for _ in range(4):
        heard += numbers(driver)
        sends.flush()
    assert heard == list(range(8))
    assert len(sent) == 9
    assert sends.waiting == 0


def test_a_neighbour_that_takes_nothing_is_an_error():
    network = InProcessNetwork(now=lambda: 0.0, limits=TransportLimits(queue_messages=1))
    network.endpoint("peer", m.codec())
    mine = Woken(network.endpoint("mine", m.codec()))
    network.connect_all()
    sends = Sends(mine, lambda message, began_s: None, lambda: 7.0)
    sends.flush()
    sends.send("peer", m.GlobalNorm(update=1, norm_sq=2.0))
    with pytest.raises(PeerStalled):
        sends.send("peer", m.GlobalNorm(update=2, norm_sq=2.0))
