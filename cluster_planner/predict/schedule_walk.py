"""The period of one pipeline, found by walking through its schedule event by event. Pure arithmetic on seconds.

`update_s` walks one update of a synchronous schedule, from its first forward to its optimizer step, in the order of
model_costs.py. A pass begins when its stage is free and its input is here; a message leaves when its link is free. So
the result contains the bubble, the latency of the first and the last micro-batch, and the waits of 1f1b for round trips
longer than its stages hold. With equal stages and links that cost nothing it is the formula: (m + p − 1) passes for m
micro-batches and p stages, a bubble of (p − 1) / (m + p − 1).

`walked_s` walks an asynchronous pipeline whose window or staleness limits what is in flight. Micro-batches of one
update are admitted together when an update before them is done, so they go round in bunches. A bunch that goes forward
meets others that come back, at stages and uplinks that both need; so a round takes longer than its idle trip and one
bunch's passage, which is all that stage_times.period_s counts. Stages work in the order of ravnest's stage machine:
update, then backward and forward in turn. On each uplink and each link one message follows another. The walk ends when
the pipeline is, after an update, in the state in which an earlier update left it: from there on it repeats itself, and
what lies between the two is its period. The walk leaves out averaging, downlinks that several senders fill at once, and
windows that are tuned. tests/unit/ravnest/simulator/test_run_order.py holds both walks to the stage machine.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush
from typing import NamedTuple

from cluster_planner.inputs.model_costs import Workload

SHORTEST_S = 1e-9
"""No micro-batch is predicted to take less, so that units stated to cost nothing still have a rate."""

SAME = 1e-3
"""Two states are the same if their times differ by no more than this part of the time between them."""

CYCLES = 12
"""The largest number of cycles that are walked. A cycle is as many updates as may be in flight at once."""

REMEMBERED = 4096
"""The number of walks whose results this process caches."""

_ACTIVATION, _GRADIENT, _FORWARD, _BACKWARD, _UPDATE = range(5)


@dataclass(frozen=True)
class PassTimes:
    """The seconds that one micro-batch takes at a stage, forward and backward, and those of its optimizer step."""

    forward_s: float
    backward_s: float
    step_s: float


@dataclass(frozen=True)
class Hop:
    """A boundary from a stage to the next: the seconds that its messages take to leave, either way, and then travel."""

    forward_s: float
    gradient_s: float
    latency_s: float


class _At(NamedTuple):
    forwards: int
    backwards: int


def update_s(work: Workload, stages: Sequence[PassTimes], hops: Sequence[Hop]) -> float:
    """Return the seconds from one update's first forward to the next one's.

    `hops` has one entry less than `stages`.
    """
    count, last = work.update_every, len(stages) - 1
    limits = [work.held(len(stages), index) for index in range(len(stages))]
    at = [_At(0, 0) for _ in stages]
    free_s = [0.0 for _ in stages]
    links_s = {(index, onward): 0.0 for index in range(last) for onward in (True, False)}
    inputs: list[list[float]] = [[0.0] * count if index == 0 else [] for index in range(len(stages))]
    gradients: list[list[float]] = [[] for _ in stages]

    def send(hop: int, onward: bool) -> float:
        seconds = hops[hop].forward_s if onward else hops[hop].gradient_s
        left_s = max(links_s[hop, onward], free_s[hop if onward else hop + 1]) + seconds
        links_s[hop, onward] = left_s
        return left_s + hops[hop].latency_s

    moved = True
    while moved:
        moved = False
        for index, stage in enumerate(stages):
            while True:
                f, b = at[index]
                if f < count and f - b < limits[index]:
                    if f == len(inputs[index]):
                        break
                    free_s[index] = max(free_s[index], inputs[index][f]) + stage.forward_s
                    at[index] = _At(f + 1, b)
                    if index < last:
                        inputs[index + 1].append(send(index, onward=True))
                    else:
                        gradients[index].append(free_s[index])
                else:
                    if b == len(gradients[index]):
                        break
                    free_s[index] = max(free_s[index], gradients[index][b]) + stage.backward_s
                    at[index] = _At(f, b + 1)
                    if index:
                        gradients[index - 1].append(send(index - 1, onward=False))
                moved = True
    # A stage makes its step before the next update's first micro-batch is here, or holds that one up.
    return max(free + stage.step_s - arrived[0] for free, stage, arrived in zip(free_s, stages, inputs, strict=True))


@dataclass(frozen=True)
class Uplink:
    """The seconds for which a stage's messages of one micro-batch fill its uplink. Stages of one `host` share it; it is
    a number within the pipeline, so that like pipelines of other nodes are the same walk.
    """

    host: int
    activation_s: float = 0.0
    gradient_s: float = 0.0


@lru_cache(maxsize=REMEMBERED)
def walked_s(
    work: Workload, window: int, stages: tuple[PassTimes, ...], hops: tuple[Hop, ...], uplinks: tuple[Uplink, ...]
) -> float:
    """Return the seconds per micro-batch in the steady state of an asynchronous pipeline.

    `hops` has one entry less than `stages`. A pipeline that does not repeat itself within CYCLES cycles is given its
    mean over the second half of them. Results are cached, because a plan, and each change that its advice tries, leaves
    most clusters as they were.
    """
    walk = _Walk(work, window, stages, hops, uplinks)
    ended_s: list[float] = []
    seen: dict[tuple[int, ...], list[tuple[int, list[float]]]] = {}
    for number in range(CYCLES * (work.max_staleness + 1)):
        now_s = walk.updated()
        ended_s.append(now_s)
        counts, left_s = walk.state(now_s)
        earlier = seen.setdefault(counts, [])
        for before, left_then_s in reversed(earlier):
            since_s = now_s - ended_s[before]
            if all(abs(a - b) <= SAME * since_s for a, b in zip(left_s, left_then_s, strict=True)):
                return since_s / ((number - before) * work.update_every)
        earlier.append((number, left_s))
    half = len(ended_s) // 2
    return (ended_s[-1] - ended_s[half - 1]) / ((len(ended_s) - half) * work.update_every)


class _Message(NamedTuple):
    """What a pass sends on: to which stage, as what, and the numbers and seconds of the uplink and link it goes by."""

    to: int
    kind: int
    uplink: int
    link: int
    uplink_s: float
    link_s: float
    latency_s: float


class _Walk:
    """The pipeline at one moment. What has been done is counted; which micro-batch it was follows from the order."""

    def __init__(
        self, work: Workload, window: int, stages: Sequence[PassTimes], hops: Sequence[Hop], uplinks: Sequence[Uplink]
    ) -> None:
        count = len(stages)
        self._every, self._staleness, self._window, self._stages = work.update_every, work.max_staleness, window, stages
        self._came, self._came_back = [0] * count, [0] * count
        self._forwards, self._backwards, self._version = [0] * count, [0] * count, [0] * count
        self._is_busy, self._went_back = [index == 0 for index in range(count)], [False] * count
        host_of = {uplink.host: number for number, uplink in enumerate(uplinks)}
        self._uplink_free_s, self._link_free_s = [0.0] * count, [0.0] * (2 * count)
        self._onward: list[_Message | None] = [None] * count
        self._back: list[_Message | None] = [None] * count
        for i, hop in enumerate(hops):
            here, there = uplinks[i], uplinks[i + 1]
            ways = host_of[here.host], host_of[there.host]
            sending_s, coming_s = here.activation_s, there.gradient_s
            activation_s, gradient_s = max(sending_s, hop.forward_s), max(coming_s, hop.gradient_s)
            self._onward[i] = _Message(i + 1, _ACTIVATION, ways[0], 2 * i, sending_s, activation_s, hop.latency_s)
            self._back[i + 1] = _Message(i, _GRADIENT, ways[1], 2 * i + 1, coming_s, gradient_s, hop.latency_s)
        self._number = 1
        self._coming = [(stages[0].forward_s, self._number, 0, _FORWARD)]

    def updated(self) -> float:
        """Walk on until the first stage has made one more update; return that moment in seconds.

        This is one loop, without a call for each event, since a search for a plan walks through a million of them.
        """
        every, staleness, window, stages = self._every, self._staleness, self._window, self._stages
        came, came_back, forwards, backwards = self._came, self._came_back, self._forwards, self._backwards
        is_busy, went_back, version = self._is_busy, self._went_back, self._version
        uplink_free_s, link_free_s = self._uplink_free_s, self._link_free_s
        coming, number, until, now_s = self._coming, self._number, version[0] + 1, 0.0
        while version[0] < until:
            now_s, _, index, kind = heappop(coming)
            if kind == _ACTIVATION:
                came[index] += 1
            elif kind == _GRADIENT:
                came_back[index] += 1
            else:
                is_busy[index], message = False, None
                if kind == _UPDATE:
                    version[index] += 1
                elif kind == _FORWARD:
                    forwards[index] += 1
                    if (message := self._onward[index]) is None:  # the last stage, whose backward follows at once
                        came_back[index] += 1
                else:
                    backwards[index] += 1
                    message = self._back[index]
                if message is not None:
                    to, kind, uplink, link, uplink_s, link_s, latency_s = message
                    starts_s = max(now_s, uplink_free_s[uplink], link_free_s[link])
                    uplink_free_s[uplink] = starts_s + uplink_s
                    arrived_s = link_free_s[link] = starts_s + link_s
                    number += 1  # at one moment, what was caused first happens first
                    heappush(coming, (arrived_s + latency_s, number, to, kind))
            if is_busy[index]:
                continue
            done, back, stage = forwards[index], backwards[index], stages[index]
            if back == (version[index] + 1) * every:
                kind, ends_s = _UPDATE, now_s + stage.step_s
            else:
                if index:
                    forward = came[index] > done
                else:
                    forward = done - back < window and version[0] >= done // every - staleness
                if came_back[index] > back and not (forward and went_back[index]):
                    went_back[index] = True
                    kind, ends_s = _BACKWARD, now_s + stage.backward_s
                elif forward:
                    went_back[index] = False
                    kind, ends_s = _FORWARD, now_s + stage.forward_s
                else:
                    continue
            is_busy[index] = True
            number += 1
            heappush(coming, (ends_s, number, index, kind))
        self._number = number
        return now_s

    def state(self, now_s: float) -> tuple[tuple[int, ...], list[float]]:
        """Return all that decides what follows: counts since the first stage's update, and seconds left from `now_s`.

        The seconds are those until each coming event, and until each uplink and link is free.
        """
        version = self._version[0]
        coming = sorted((index, kind, at_s) for at_s, _, index, kind in self._coming)
        passes = (*self._forwards, *self._backwards, *self._came[1:], *self._came_back)
        counts = (
            *(each - version for each in self._version),
            *(each - version * self._every for each in passes),
            *self._is_busy,
            *self._went_back,
            *(part for index, kind, _ in coming for part in (index, kind)),
        )
        free_s = (*self._uplink_free_s, *self._link_free_s)
        return counts, [*(at_s - now_s for _, _, at_s in coming), *(max(0.0, each - now_s) for each in free_s)]
