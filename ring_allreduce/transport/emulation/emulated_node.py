"""One emulated node: the uplink, the downlink and the links that lie between its endpoint and its peers.

Messages to and from most peers pass all three. Between nodes of one host they pass the pair's link alone, and with
peers that have no link (the driver) nothing. What really carries a message, shared or lent memory included, comes after
this: nothing goes around it. In: messages and the time. Out: messages whose time has come. No socket, no clock.
"""

from collections.abc import Mapping
from typing import Generic, TypeVar

from ring_allreduce.transport.emulation.links import RANK, EmulatedDownlink, EmulatedUplink, LinkShape, NodeShape
from ring_allreduce.transport.stats import Lane, Lateness

Out = TypeVar("Out")
In = TypeVar("In")


class EmulatedNode(Generic[Out, In]):
    """The emulated surroundings of one endpoint. `Out`: the type of what is sent; `In`: of what is received."""

    def __init__(self, name: str, links: Mapping[str, LinkShape], node: NodeShape | None, lateness: Lateness) -> None:
        """`name`: the endpoint's, from which the jitter follows. `links`: from this endpoint, by peer. `node`: its
        uplink and downlink; None: only the links take time. `lateness`: counts how late messages are handed on.
        """
        self._arriving = {} if node is None else node.arriving_bytes_per_s
        beyond = {peer: shape for peer, shape in links.items() if peer in self._arriving}
        beside = {peer: shape for peer, shape in links.items() if peer not in self._arriving}
        endless = float("inf")
        ways = (
            EmulatedUplink[Out](endless if node is None else node.up_bytes_per_s, beyond, seed=name),
            EmulatedUplink[Out](endless, beside, seed=name),
        )
        self._uplinks = [way for way, peers in zip(ways, (beyond, beside), strict=True) if peers]
        self._uplink_of = {peer: way for way in self._uplinks for peer in links if peer in way}
        self._downlink = EmulatedDownlink[In](endless if node is None else node.down_bytes_per_s)
        self._lateness = lateness

    def shapes(self, peer: str) -> bool:
        """Say whether messages to `peer` pass an emulated link."""
        return peer in self._uplink_of

    def push(self, peer: str, lane: Lane, item: Out, n_bytes: int, now_s: float) -> None:
        """Send `item`, of `n_bytes`. `now_s` must not go backwards in any call."""
        self._uplink_of[peer].push(peer, lane, item, n_bytes, now_s)

    def queued(self, peer: str, lane: Lane) -> int:
        """Return how many items for `peer` have not reached it."""
        uplink = self._uplink_of.get(peer)
        return 0 if uplink is None else uplink.queued(peer, lane)

    def forget(self, peer: str) -> None:
        """Drop everything that is under way to `peer`."""
        uplink = self._uplink_of.get(peer)
        if uplink is not None:
            uplink.forget(peer)

    def left(self, now_s: float) -> list[tuple[str, Lane, Out]]:
        """Return what has reached its receivers by now, as (peer, lane, item), for the receivers' `came`."""
        arrived = [each for uplink in self._uplinks for each in uplink.pop_arrived(now_s)]
        for at_s, *_ in arrived:
            self._lateness.saw(now_s - at_s)
        return [(peer, lane, item) for _, peer, lane, item in arrived]

    def delays(self, sender: str) -> bool:
        """Say whether messages from `sender` pass the downlink."""
        return sender in self._arriving

    def came(self, sender: str, lane: Lane, item: In, n_bytes: int, now_s: float) -> None:
        """Let a message from `sender` pass the downlink."""
        self._downlink.push(lane, item, n_bytes, now_s, self._arriving[sender])

    def entered(self, now_s: float) -> list[tuple[Lane, In]]:
        """Return what has entered by now, as (lane, item), PIPELINE first."""
        arrived = self._downlink.pop_arrived(now_s)
        for at_s, *_ in arrived:
            self._lateness.saw(now_s - at_s)
        return [(lane, item) for _, lane, item in sorted(arrived, key=lambda each: RANK[each[1]])]

    def next_due_s(self) -> float | None:
        """Return when `left` or `entered` can next return something, in seconds; None when nothing is under way."""
        times = [uplink.next_due_s() for uplink in self._uplinks]
        return min((at_s for at_s in (*times, self._downlink.next_due_s()) if at_s is not None), default=None)
