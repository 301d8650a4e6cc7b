"""The calls of one caller: sent, answered, refused or late, and the hosts that it may call. Without a thread.

In: calls, deliveries, the hosts that the table names, and the time. Out: requests, and a result for each call at its
deadline at the latest. A deadline is that of answer_times.py, by host. A host is called once it has welcomed the
caller, since it learns of callers from the table, now and then.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from heapq import heappop, heappush

import torch
from torch import Tensor

from ravnest.errors import InvalidInput
from ravnest.experts.answer_times import FIRST_S, MOST_S, AnswerTimes
from ravnest.experts.config import ExpertsConfig
from ravnest.experts.grid import Expert
from ravnest.experts.messages import Answer, Backward, Forward, Hello, Refused, Welcome
from ring_allreduce import PeerStalled, TransportError
from ring_allreduce.transport import Delivery, Endpoint, Lane, PeerAddress

HELLO_S = 0.5
"""Between two greetings of a host that has not welcomed this caller: the host looks at the table now and then."""


@dataclass(frozen=True)
class Call:
    """One request to the host of an expert. updates: None for a forward; else of the forward whose gradient it is."""

    expert: Expert
    host: str
    tensors: tuple[Tensor, ...]
    training: bool = True
    updates: int | None = None


@dataclass(frozen=True)
class Answered:
    """What came back: the output or the gradient of the input; `updates` and `staleness` as in messages.Answer."""

    tensor: Tensor
    updates: int
    staleness: int
    seconds: float


@dataclass(frozen=True)
class Failed:
    """Nothing came back. why: "late", "lost", or what the host gave as its reason."""

    why: str


@dataclass
class _Waiting:
    """call: without its tensors. What is late is remembered for a minute, and they may be large."""

    call: Call
    future: Future[Answered | Failed]
    sent_s: float
    shape: tuple[int, ...]
    late: bool = False


class Calls:
    """What one caller has asked. It belongs to the thread that owns the endpoint; `usable` may be asked from others."""

    def __init__(self, config: ExpertsConfig, endpoint: Endpoint) -> None:
        self._config, self._endpoint = config, endpoint
        self._waiting: dict[int, _Waiting] = {}
        self._due: list[tuple[float, int]] = []
        self._number = 0
        self._times: dict[str, AnswerTimes] = {}
        self._under_way: Counter[str] = Counter()
        """By host: requests that were not answered, those that are late included."""
        self._have_learnt: set[str] = set()
        """The hosts that have answered a backward. Their first one may take seconds: they load what learns."""
        self._greeted: dict[str, float] = {}
        self._welcomed: frozenset[str] = frozenset()
        self._addresses: Mapping[str, PeerAddress] = {}

    @property
    def due_s(self) -> float | None:
        """When the next call is late; None when none is under way."""
        return self._due[0][0] if self._due else None

    def usable(self, now_s: float) -> frozenset[str]:
        """The hosts that have welcomed this caller, those that are left alone for a while excepted. When that would be
        all, it is none: then nothing is gained by waiting."""
        welcomed, times = self._welcomed, self._times
        return frozenset(host for host in welcomed if not times[host].rests(now_s)) or welcomed

    def answer_times(self) -> dict[str, float | None]:
        """The mean time of an answer by host, None before the first."""
        return {host: times.mean_s for host, times in list(self._times.items())}

    def meet(self, hosts: Mapping[str, PeerAddress], now_s: float) -> None:
        """Know the hosts that the table names, and greet those that have not welcomed this caller."""
        if hosts is not self._addresses:
            for gone in self._addresses.keys() - hosts.keys():
                self._endpoint.disconnect([gone])
                self._greeted.pop(gone, None)
            for name, address in hosts.items():
                if self._addresses.get(name) != address:
                    self._greeted.pop(name, None)
                    self._welcomed -= {name}
                    try:
                        self._endpoint.connect({name: address})
                    except (InvalidInput, TransportError):
                        continue  # a record that names no address: it is never greeted, and so never used
                    self._greeted[name] = float("-inf")
                    self._times[name] = AnswerTimes()
                    self._have_learnt.discard(name)
            self._welcomed &= hosts.keys()
            self._addresses = hosts
        for name, greeted_s in self._greeted.items():
            if name not in self._welcomed and now_s >= greeted_s + HELLO_S:
                self._greeted[name] = now_s
                with contextlib.suppress(PeerStalled):  # it is greeted again
                    self._endpoint.send(name, Lane.PIPELINE, Hello())

    def send(self, call: Call, future: Future[Answered | Failed], now_s: float) -> None:
        """Send a call, whose result `future` gets."""
        self._number += 1
        message: Forward | Backward
        if call.updates is None:
            message = Forward(call=self._number, expert=call.expert, training=call.training)
            shape = self._config.out_shape
        else:
            message = Backward(call=self._number, expert=call.expert, updates=call.updates)
            shape = self._config.input_shape
        try:
            self._endpoint.send(call.host, Lane.PIPELINE, message, call.tensors)
        except TransportError:  # nobody has this name any more, takes anything, or takes so much at once
            future.set_result(Failed("lost"))
            return
        waiting = _Waiting(replace(call, tensors=()), future, now_s, (call.tensors[0].shape[0], *shape))
        self._waiting[self._number] = waiting
        self._under_way[call.host] += 1
        deadline_s = self._times[call.host].deadline_s
        if call.updates is not None and call.host not in self._have_learnt:
            deadline_s = max(deadline_s, FIRST_S)
        heappush(self._due, (now_s + deadline_s, self._number))

    def fail_late(self, now_s: float) -> None:
        """Fail what is late. An answer that comes later still tells how long the host takes, for a while."""
        while self._due and self._due[0][0] <= now_s:
            _, number = heappop(self._due)
            waiting = self._waiting.get(number)
            if waiting is None:
                continue
            if waiting.late:
                self._forget(number)
                continue
            waiting.late = True
            self._times[waiting.call.host].failed(waiting.sent_s, now_s)
            heappush(self._due, (waiting.sent_s + 2 * MOST_S, number))
            waiting.future.set_result(Failed("late"))

    def take(self, delivery: Delivery, now_s: float) -> Expert | None:
        """Take what a host says. Returns an expert of which its host says that it has it no longer."""
        message = delivery.message
        if isinstance(message, Welcome) and delivery.sender in self._greeted:
            self._welcomed |= {delivery.sender}
        elif isinstance(message, Answer | Refused):
            waiting = self._waiting.get(message.call)
            if waiting is None or waiting.call.host != delivery.sender:
                return None
            under_way = self._under_way[delivery.sender]
            self._forget(message.call)
            seconds = now_s - waiting.sent_s
            result: Answered | Failed
            if isinstance(message, Refused):
                result = Failed(message.why)
            else:
                self._times[delivery.sender].answered(seconds, under_way)
                if waiting.call.updates is not None:
                    self._have_learnt.add(delivery.sender)
                result = self._checked(waiting, message, delivery.tensors, seconds)
            if not waiting.late:
                waiting.future.set_result(result)
            if result == Failed("not here"):
                return waiting.call.expert
        return None

    def fail_all(self) -> None:
        """Give up all calls that are under way."""
        for waiting in self._waiting.values():
            if not waiting.late:
                waiting.future.set_result(Failed("closed"))
        self._waiting.clear()
        self._under_way.clear()

    def _forget(self, number: int) -> None:
        waiting = self._waiting.pop(number)
        self._under_way[waiting.call.host] -= 1

    def _checked(
        self, waiting: _Waiting, message: Answer, tensors: tuple[Tensor, ...], seconds: float
    ) -> Answered | Failed:
        """The answer, or a failure where it is none of the form that was agreed on: it came from another's machine."""
        if len(tensors) != 1 or tensors[0].dtype != torch.float32 or tuple(tensors[0].shape) != waiting.shape:
            return Failed("invalid answer")
        if not bool(tensors[0].isfinite().all()):
            return Failed("answer not finite")
        return Answered(tensors[0], message.updates, message.staleness, seconds)
