"""Outgoing messages of one peer: two bounded queues in front of its two lanes, perhaps behind an emulated uplink.

Decides what is handed over and when: PIPELINE before BULK, and little of BULK at a time, so that a PIPELINE message
waits for at most a few chunks that are already on their way. It does not decide when to try: the endpoint calls.
"""

from collections import deque
from collections.abc import Callable

from ring_allreduce.errors import PeerStalled
from ring_allreduce.transport.emulation.emulated_node import EmulatedNode
from ring_allreduce.transport.endpoint import Delivery, TransportLimits
from ring_allreduce.transport.stats import Lane
from ring_allreduce.transport.zmq.lanes import Parts, Way

TEND_EVERY_S = 0.002


class OutgoingPeer:
    """The way to one peer."""

    def __init__(
        self,
        peer: str,
        connect: Callable[[Lane, bool], Way],
        limits: TransportLimits,
        node: EmulatedNode[Parts, Delivery],
    ) -> None:
        """`connect`: makes a lane to it, by shared memory if told that it may. `node`: what has to be passed first."""
        self.peer = peer
        self._connect = connect
        self.ways: dict[Lane, Way] = {}
        try:
            for lane in Lane:
                self.ways[lane] = connect(lane, True)
        except BaseException:
            self.close(linger_ms=0)
            raise
        self._limits = limits
        self._node = node
        self._waiting: dict[Lane, deque[Parts]] = {lane: deque() for lane in Lane}
        self._refused: set[Lane] = set()
        self._tend_at_s = float("-inf")

    def queued(self, lane: Lane) -> int:
        """Messages that are still here."""
        return len(self._waiting[lane]) + self._node.queued(self.peer, lane)

    def push(self, lane: Lane, parts: Parts, n_bytes: int, now_s: float) -> None:
        """Queue one message. Raises PeerStalled when the lane's queue is full."""
        if self.queued(lane) >= self._limits.queue_messages:
            self._refused.add(lane)
            raise PeerStalled(self.peer, lane.value, self.queued(lane))
        if self._node.shapes(self.peer):
            self._node.push(self.peer, lane, parts, n_bytes, now_s)
        else:
            self._waiting[lane].append(parts)

    def left(self, lane: Lane, parts: Parts) -> None:
        """A message has passed the node's uplink and the link to this peer."""
        self._waiting[lane].append(parts)

    def flush(self, now_s: float) -> None:
        """Hand over what is due, as far as the lanes take it."""
        if now_s >= self._tend_at_s:
            self._tend_at_s = now_s + TEND_EVERY_S
            for way in self.ways.values():
                way.tend(now_s)
        for lane, waiting in self._waiting.items():
            if waiting and not self._drain(lane):
                return  # BULK stays behind PIPELINE: they share the way to this peer

    def blocked_lane(self) -> Lane | None:
        """The lane that has to take more before flush() can go on."""
        return next((lane for lane, waiting in self._waiting.items() if waiting), None)

    def room_again(self) -> bool:
        """Whether a lane that refused a message is at most half full now; True once for each refusal."""
        if not self._refused:
            return False
        roomy = {lane for lane in self._refused if self.queued(lane) <= self._limits.queue_messages // 2}
        self._refused -= roomy
        return bool(roomy)

    def close(self, linger_ms: int) -> None:
        """Close the lanes; what they hold goes on being sent for `linger_ms` in the background."""
        for way in self.ways.values():
            way.close(linger_ms)

    def _drain(self, lane: Lane) -> bool:
        waiting = self._waiting[lane]
        while waiting:
            way = self.ways[lane]
            if way.takes() and way.send(waiting[0]):
                waiting.popleft()
            elif way.broken:
                # Who is gone has lost what it had not read; one that lives reads it, perhaps after what follows.
                way.close(0)
                self.ways[lane] = self._connect(lane, False)
            else:
                return False
        return True
