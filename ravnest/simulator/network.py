"""The links of a simulated run: when a message arrives, by the arithmetic with which the transport imitates links.

A message is a number of bytes, and a function with its argument that is called on arrival. The module decides through
which uplink and downlink of `ring_allreduce.transport` the message goes. Stages of one host share its uplink and its
downlink, and reach each other without either.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ravnest.simulator.clock import Action, VirtualClock
from ravnest.simulator.fleet import VirtualFleet
from ring_allreduce.transport import EmulatedDownlink, EmulatedUplink, Lane, LinkShape

UNLIMITED = float("inf")


class Path:
    """The way from one stage to another. It shares the uplink and the downlink with other paths, but not the link."""

    __slots__ = ("_bytes_sent", "_downlink", "_link", "shape", "uplink")

    def __init__(
        self, uplink: _Uplink, downlink: _Downlink | None, link: str, shape: LinkShape, bytes_sent: dict[Lane, int]
    ) -> None:
        self.uplink = uplink
        self._downlink = downlink
        self._link = link
        self.shape = shape
        self._bytes_sent = bytes_sent
        uplink.emulated.add(link, shape)

    def transmit(self, lane: Lane, n_bytes: int, action: Action, argument: Any) -> None:
        """Send a message of `n_bytes`, and call `action` with `argument` when it has arrived."""
        uplink, link = self.uplink, self._link
        self._bytes_sent[lane] += n_bytes
        now_s = uplink.clock.now_s
        at_s = uplink.leave_at_once(link, lane, n_bytes, now_s)
        if at_s is None:
            uplink.emulated.push(link, lane, (self, n_bytes, (action, argument)), n_bytes, now_s)
            uplink.serve()
        else:
            self.left(lane, n_bytes, (action, argument), at_s)

    def left(self, lane: Lane, n_bytes: int, item: tuple[Action, Any], at_s: float) -> None:
        """A message has left the uplink, and will be at the other end at `at_s`."""
        downlink = self._downlink
        if downlink is None:
            self.uplink.clock.at(at_s, *item)
            return
        rate, link_rate = self.uplink.bytes_per_s, self.shape.bytes_per_s
        if link_rate < rate:
            rate = link_rate
        self.uplink.clock.at(at_s, downlink.came, (lane, n_bytes, rate, item))

    def change_shape(self, shape: LinkShape) -> None:
        """Give the link another rate, latency and jitter from now on."""
        self.shape = shape
        self.uplink.emulated.change(self.uplink.clock.now_s, links={self._link: shape})
        self.uplink.serve()


class _Downlink:
    __slots__ = ("clock", "emulated", "wakes_s")

    def __init__(self, clock: VirtualClock, bytes_per_s: float) -> None:
        self.clock = clock
        self.emulated: EmulatedDownlink[tuple[Action, Any]] = EmulatedDownlink(bytes_per_s)
        self.wakes_s = UNLIMITED

    def came(self, message: tuple[Lane, int, float, tuple[Action, Any]]) -> None:
        """The last byte of a message has come."""
        lane, n_bytes, bytes_per_s, item = message
        clock = self.clock
        at_s = self.emulated.enter(lane, item, n_bytes, clock.now_s, bytes_per_s)
        if at_s is None:
            self.serve()
        else:
            clock.at(at_s, *item)

    def woken(self, _: None) -> None:
        self.wakes_s = UNLIMITED
        self.serve()

    def serve(self) -> None:
        clock, emulated = self.clock, self.emulated
        for at_s, _, (action, argument) in emulated.pop_begun(clock.now_s):
            clock.at(at_s, action, argument)
        begins_s = emulated.next_begin_s()
        if begins_s is not None and begins_s < self.wakes_s:
            self.wakes_s = begins_s
            clock.at(begins_s, self.woken, None)


class _Uplink:
    __slots__ = ("bytes_per_s", "clock", "emulated", "leave_at_once", "wakes_s")

    def __init__(self, clock: VirtualClock, bytes_per_s: float, seed: str) -> None:
        self.clock = clock
        self.bytes_per_s = bytes_per_s
        self.emulated: EmulatedUplink[tuple[Path, int, tuple[Action, Any]]] = EmulatedUplink(bytes_per_s, {}, seed=seed)
        self.leave_at_once = self.emulated.leave_at_once
        self.wakes_s = UNLIMITED

    def woken(self, _: None) -> None:
        self.wakes_s = UNLIMITED
        self.serve()

    def serve(self) -> None:
        clock, emulated = self.clock, self.emulated
        for at_s, _, lane, (path, n_bytes, item) in emulated.pop_left(clock.now_s):
            path.left(lane, n_bytes, item, at_s)
        starts_s = emulated.next_start_s()
        if starts_s is not None and starts_s < self.wakes_s:
            self.wakes_s = starts_s
            clock.at(starts_s, self.woken, None)


class VirtualNetwork:
    """All links of a fleet."""

    def __init__(self, fleet: VirtualFleet, clock: VirtualClock, seed: int = 0) -> None:
        """`seed`: of the links' jitter."""
        self._fleet = fleet
        self._seed = seed
        self._clock = clock
        self._default_link = fleet.default_link
        self._paths: dict[tuple[str, str], Path] = {}
        self._moves = 0
        self._nodes: dict[str, tuple[_Uplink, _Downlink]] = {}
        self.bytes_sent: dict[Lane, int] = dict.fromkeys(Lane, 0)

    def path(self, source: str, target: str) -> Path:
        """Return the path from one stage to another, which all that they send takes."""
        return self._paths.get((source, target)) or self._new_path(source, target)

    def move(self, fleet: VirtualFleet, stages: Collection[str]) -> None:
        """These stages are on other nodes from now on, as `fleet` says. What is on its way arrives nevertheless."""
        self._fleet = fleet
        self._moves += 1
        gone = [path for path in self._paths if path[0] in stages or path[1] in stages]
        for path in gone:
            del self._paths[path]

    def change_link(self, shape: LinkShape) -> None:
        """Give this shape, from now on, to every link that the fleet does not name."""
        self._default_link = shape
        for (source, target), path in self._paths.items():
            if (source, target) not in self._fleet.links:
                path.change_shape(shape)

    def change_node(self, name: str, up_bytes_per_s: float, down_bytes_per_s: float) -> None:
        """Give a node's uplink and downlink these rates from now on."""
        uplink, downlink = self._ends(name)
        uplink.emulated.change(self._clock.now_s, up_bytes_per_s=up_bytes_per_s)
        uplink.bytes_per_s = up_bytes_per_s
        uplink.serve()
        downlink.emulated.change(self._clock.now_s, down_bytes_per_s)
        downlink.serve()

    def _new_path(self, source: str, target: str) -> Path:
        here, there = self._fleet.node_of.get(source), self._fleet.node_of.get(target)
        shape = self._shape(source, target)
        link = f"{source}>{target}" + (f"#{self._moves}" if self._moves else "")
        if here is None or there is None or here == there:
            ends: tuple[_Uplink, _Downlink | None] = _Uplink(self._clock, UNLIMITED, self._seed_of(link)), None
        else:
            ends = self._ends(here)[0], self._ends(there)[1]
        path = self._paths[source, target] = Path(*ends, link, shape, self.bytes_sent)
        return path

    def _shape(self, source: str, target: str) -> LinkShape:
        shape = self._fleet.links.get((source, target))
        if shape is None:
            shape = self._fleet.other_link(source, target) if self._fleet.other_link else self._default_link
        return shape

    def _ends(self, name: str) -> tuple[_Uplink, _Downlink]:
        if name not in self._nodes:
            node = self._fleet.nodes[name]
            self._nodes[name] = (
                _Uplink(self._clock, node.up_bytes_per_s, self._seed_of(name)),
                _Downlink(self._clock, node.down_bytes_per_s),
            )
        return self._nodes[name]

    def _seed_of(self, uplink: str) -> str:
        return f"{self._seed}/links/{uplink}"
