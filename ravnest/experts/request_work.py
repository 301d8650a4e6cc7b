"""The requests at a host, from arrival to answer: which are refused, which are computed together, and what comes of it.

In: requests of callers, with tensors. Out: replies, and counts. It sends nothing itself. It belongs to the host's
thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ravnest.experts.config import ExpertsConfig
from ravnest.experts.expert import HostedExpert, NotFinite
from ravnest.experts.grid import Expert
from ravnest.experts.messages import Answer, Backward, Forward, Refused, Why
from ravnest.experts.request_queue import RequestQueue

WAITING_BATCHES = 16
"""So many full batches may wait; further requests are refused as `busy`."""

MOST_SAID = 400
"""Characters of an error that a caller is told."""

_Work = tuple[Expert, str]
"""What is computed together: an expert, and "forward", "evaluate" or "backward"."""


@dataclass
class WorkFigures:
    """What a host has computed since it began."""

    requests: int = 0
    samples: int = 0
    batches: int = 0
    updates: int = 0
    staleness: Counter[int] = field(default_factory=Counter)
    """Gradients by how many updates the expert had had since their forward."""
    refused: Counter[str] = field(default_factory=Counter)
    compute_s: float = 0.0
    host_s: float = 0.0
    """The sum of the times from a request's arrival to its answer."""


@dataclass(frozen=True)
class Reply:
    """What is to be sent to a caller."""

    caller: str
    message: Answer | Refused
    tensors: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class _Request:
    caller: str
    message: Forward | Backward
    tensors: tuple[Tensor, ...]
    came_s: float

    @property
    def samples(self) -> int:
        return self.tensors[0].shape[0]


class RequestWork:
    """Computes with the experts of a host."""

    def __init__(self, config: ExpertsConfig, experts: Mapping[Expert, HostedExpert]) -> None:
        """`experts`: what is hosted now; the host changes it."""
        self._config, self._experts = config, experts
        self._queue: RequestQueue[_Work, _Request] = RequestQueue(
            most_samples=config.batch.most_samples,
            most_wait_s=config.batch.most_wait_ms / 1e3,
            most_waiting=WAITING_BATCHES * config.batch.most_samples,
        )
        self._closed = False
        self.figures = WorkFigures()

    def due_s(self) -> float | None:
        """When `compute` has something to do; None while nothing waits."""
        return self._queue.due_s()

    def take(self, caller: str, message: Forward | Backward, tensors: tuple[Tensor, ...], now_s: float) -> list[Reply]:
        """Let a request wait for its batch, or refuse it."""
        shapes = [self._config.input_shape, self._config.out_shape][: 1 if isinstance(message, Forward) else 2]
        samples = tensors[0].shape[0] if tensors and tensors[0].dim() else 0
        most = self._config.batch.most_samples
        given = [(one.dtype, tuple(one.shape)) for one in tensors]
        if not 0 < samples <= most or given != [(torch.float32, (samples, *shape)) for shape in shapes]:
            expected = " and ".join(str(("n", *shape)) for shape in shapes)
            return [self._refusal(caller, message.call, "invalid", f"expected float32 {expected}, n at most {most}")]
        if self._closed or message.expert not in self._experts:
            return [self._refusal(caller, message.call, "not here")]
        if not all(bool(one.isfinite().all()) for one in tensors):
            return [self._refusal(caller, message.call, "not finite")]
        kind = "backward" if isinstance(message, Backward) else "forward" if message.training else "evaluate"
        request = _Request(caller, message, tensors, now_s)
        if not self._queue.put((message.expert, kind), request, samples, now_s):
            return [self._refusal(caller, message.call, "busy")]
        return []

    def drop(self, expert: Expert) -> list[Reply]:
        """Refuse all that waits for an expert that is hosted no longer."""
        waiting = [request for key in self._queue.pending() if key[0] == expert for request in self._queue.drop(key)]
        return [self._refusal(one.caller, one.message.call, "not here") for one in waiting]

    def close(self) -> list[Reply]:
        """Refuse all that waits, and from now on all that comes: the host leaves."""
        self._closed = True
        return [reply for expert in self._experts for reply in self.drop(expert)]

    def compute(self, now: Callable[[], float]) -> list[Reply]:
        """Compute the batch that is due, if there is one. `now`: the clock, in seconds."""
        begun_s = now()
        batch = self._queue.take(begun_s)
        if batch is None:
            return []
        (name, kind), requests = batch
        expert = self._experts[name]
        replies: list[Reply] = []
        if kind == "backward":
            requests, replies = self._fresh(expert, requests)
        if requests:
            replies += self._computed(expert, kind, requests, now)
        self.figures.batches += 1
        self.figures.compute_s += now() - begun_s
        return replies

    def _computed(
        self, expert: HostedExpert, kind: str, requests: Sequence[_Request], now: Callable[[], float]
    ) -> list[Reply]:
        """Compute requests together. Where that cannot be, each is computed alone: one costs no other its answer."""
        joined = [torch.cat([one.tensors[place] for one in requests]) for place in range(len(requests[0].tensors))]
        try:
            if kind == "backward":
                result = expert.backward(joined[0], joined[1], len(requests))
                self.figures.updates += 1
            else:
                result = expert.forward(joined[0], training=kind == "forward")
        except Exception as error:  # noqa: BLE001 - the module is the user's, and the samples are a caller's
            if len(requests) > 1:
                return [reply for one in requests for reply in self._computed(expert, kind, [one], now)]
            why: Why = "not finite" if isinstance(error, NotFinite) else "invalid"
            said = str(error) if isinstance(error, NotFinite) else f"{type(error).__name__}: {error}"
            return [self._refusal(requests[0].caller, requests[0].message.call, why, said[:MOST_SAID])]
        made, done_s = (1 if kind == "backward" else 0), now()
        parts = zip(requests, _parts(result, requests), strict=True)
        return [self._answer(request, part, expert.updates, made, done_s) for request, part in parts]

    def _answer(self, request: _Request, result: Tensor, updates: int, made: int, done_s: float) -> Reply:
        host_s = max(0.0, done_s - request.came_s)
        self.figures.requests += 1
        self.figures.samples += request.samples
        self.figures.host_s += host_s
        staleness = 0
        if isinstance(request.message, Backward):
            staleness = max(0, updates - made - request.message.updates)
            self.figures.staleness[staleness] += 1
        answer = Answer(call=request.message.call, updates=updates, staleness=staleness, host_s=host_s)
        return Reply(request.caller, answer, (result,))

    def _fresh(self, expert: HostedExpert, requests: Sequence[_Request]) -> tuple[list[_Request], list[Reply]]:
        """The requests whose gradients are fresh enough, and refusals of the others.

        A host that took over from an older copy has made fewer updates than the forward's: that is not stale.
        """
        fresh, refusals = [], []
        for one in requests:
            assert isinstance(one.message, Backward)
            staleness = expert.updates - one.message.updates
            if staleness > self._config.max_staleness:
                said = f"{staleness} updates since its forward, at most {self._config.max_staleness}"
                refusals.append(self._refusal(one.caller, one.message.call, "stale", said))
            else:
                fresh.append(one)
        return fresh, refusals

    def _refusal(self, caller: str, call: int, why: Why, said: str = "") -> Reply:
        self.figures.refused[why] += 1
        return Reply(caller, Refused(call=call, why=why, said=said))


def _parts(joined: Tensor, requests: Sequence[_Request]) -> tuple[Tensor, ...]:
    parts: tuple[Tensor, ...] = torch.split(joined, [one.samples for one in requests])
    return parts
