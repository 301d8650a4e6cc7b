"""Messages to one peer: PIPELINE before BULK, bounded queues, and a lane that broke is replaced."""

import pytest

from ring_allreduce.errors import PeerStalled
from ring_allreduce.transport.emulation.emulated_node import EmulatedNode
from ring_allreduce.transport.endpoint import TransportLimits
from ring_allreduce.transport.stats import Lane, Lateness
from ring_allreduce.transport.zmq.lanes import PeerLanes, endpoint_url, tune


class FakeLane:
    """Takes `room` messages, and notes them."""

    def __init__(self, lane, room, log):
        self.lane, self.room, self.log = lane, room, log
        self.broken = self.closed = False

    def takes(self):
        return self.room > 0 and not self.broken

    def send(self, frames):
        self.room -= 1
        self.log.append((self.lane, frames[0]))
        return True

    def watch(self):
        return self.lane.value, True

    def tend(self, now_s):
        pass

    def close(self, linger_ms=0):
        self.closed = True


class Peer:
    """The lanes to one peer, made of FakeLane."""

    def __init__(self, room=0, queue_messages=4):
        self.log, self.made = [], []
        self.room = room
        node = EmulatedNode("a", {}, None, Lateness())
        self.lanes = PeerLanes("b", self.connect, TransportLimits(queue_messages=queue_messages), node)

    def connect(self, lane, may_share):
        self.made.append((FakeLane(lane, self.room, self.log), may_share))
        return self.made[-1][0]

    def lane(self, lane):
        return next(fake for fake, _ in reversed(self.made) if fake.lane is lane)


def test_pipeline_goes_first_and_bulk_stays_behind_it():
    peer = Peer()
    peer.lanes.push(Lane.BULK, [b"bulk"], 4, 0.0)
    peer.lanes.push(Lane.PIPELINE, [b"first"], 5, 0.0)
    peer.lanes.push(Lane.PIPELINE, [b"second"], 6, 0.0)
    peer.lane(Lane.BULK).room = 9
    peer.lane(Lane.PIPELINE).room = 1
    peer.lanes.flush(0.0)
    assert peer.log == [(Lane.PIPELINE, b"first")]
    assert peer.lanes.watch() == ("pipeline", True)
    peer.lane(Lane.PIPELINE).room = 1
    peer.lanes.flush(0.0)
    assert peer.log[1:] == [(Lane.PIPELINE, b"second"), (Lane.BULK, b"bulk")]
    assert peer.lanes.watch() is None


def test_a_full_queue_refuses_and_says_once_that_there_is_room_again():
    peer = Peer(queue_messages=2)
    for _ in range(2):
        peer.lanes.push(Lane.BULK, [b"x"], 1, 0.0)
    with pytest.raises(PeerStalled):
        peer.lanes.push(Lane.BULK, [b"x"], 1, 0.0)
    peer.lanes.push(Lane.PIPELINE, [b"other lane"], 1, 0.0)
    assert not peer.lanes.room_again()
    peer.lane(Lane.PIPELINE).room = peer.lane(Lane.BULK).room = 1
    peer.lanes.flush(0.0)
    assert peer.lanes.queued(Lane.BULK) == 1
    assert peer.lanes.room_again()
    assert not peer.lanes.room_again()


def test_a_lane_that_broke_is_replaced_by_one_that_shares_no_memory_and_nothing_is_lost():
    peer = Peer(room=5)
    broken = peer.lane(Lane.BULK)
    assert all(may_share for _, may_share in peer.made)
    broken.broken = True
    peer.lanes.push(Lane.BULK, [b"x"], 1, 0.0)
    peer.lanes.flush(0.0)
    assert broken.closed
    assert peer.made[-1][1] is False
    assert peer.log == [(Lane.BULK, b"x")]


def test_a_lane_that_cannot_be_made_leaves_none_open():
    peer = Peer()
    with pytest.raises(OSError, match="none left"):
        PeerLanes("b", _second_fails(peer), TransportLimits(), EmulatedNode("a", {}, None, Lateness()))
    assert peer.made[-1][0].closed


def _second_fails(peer):
    def connect(lane, may_share):
        if lane is Lane.BULK:
            raise OSError("none left")
        return peer.connect(lane, may_share)

    return connect


def test_an_ipv6_address_gets_brackets():
    assert endpoint_url("192.0.2.1", 5) == "tcp://192.0.2.1:5"
    assert endpoint_url("fe80::1", "*") == "tcp://[fe80::1]:*"


def test_a_descriptor_that_is_gone_is_left_alone():
    assert not tune(10**6)
