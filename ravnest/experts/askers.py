"""Who asks the experts of a grid in this process: the operators of a captured graph name only the grid.

In: callers, by the name of their grid, or by a number for a layer that was given a caller of its own. Out: the one that
a graph's operation means. Nobody is found by chance: without a caller the operation fails, and says what to do.

While a plan is made, a machine's speed measured, or a model captured, no expert is asked and none learns: inside
`standing_in` each has a stand-in that computes c·x with a number c of its own (the mean of x where the shapes differ),
so that the stages of a plan can be compared with the model without a network.

A stage that forgets its activations runs a forward again before the backward (ravnest/stage/backward.py). Experts have
changed by then, and may be gone: inside `answers_kept` answers are kept, and inside `answers_again` they are given
again, and nobody is asked.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from ravnest.errors import InvalidInput
from ravnest.experts.batch_calls import Asker, Caller
from ravnest.experts.beam_search import BeamSearch
from ravnest.experts.calls import Answered, Call, Failed
from ravnest.experts.config import ExpertsConfig
from ravnest.experts.grid import Expert

OWN = "#"
"""Begins the name of the asker of a layer that was given a caller. No grid has it in its name."""

STAND_IN = "*"
"""The name that the stand-ins have in a graph whose forward was computed by them."""

Answers = deque[tuple[Tensor, Tensor]]
"""Outputs and who gave them (batch_calls.py), of the operations of one forward in their order."""

_standing_in: ContextVar[bool] = ContextVar("standing_in", default=False)
_kept: ContextVar[Answers | None] = ContextVar("kept_answers", default=None)
_again: ContextVar[Answers | None] = ContextVar("answers_again", default=None)
_lock = threading.Lock()
_of_grids: dict[str, Asker] = {}
_of_layers: WeakValueDictionary[str, Asker] = WeakValueDictionary()
_numbers = itertools.count()


@contextmanager
def standing_in() -> Iterator[None]:
    """Inside, in this thread, no expert is asked: each has a stand-in."""
    before = _standing_in.set(True)
    try:
        yield
    finally:
        _standing_in.reset(before)


@contextmanager
def answers_kept(answers: Answers) -> Iterator[None]:
    """Inside, in this thread, `answers` gets what the experts answer to forwards."""
    before = _kept.set(answers)
    try:
        yield
    finally:
        _kept.reset(before)


@contextmanager
def answers_again(answers: Answers) -> Iterator[None]:
    """Inside, in this thread, forwards get what was kept of them, in the same order, and no expert is asked."""
    before = _again.set(answers)
    try:
        yield
    finally:
        _again.reset(before)


def given_again() -> tuple[Tensor, Tensor] | None:
    """What the operation that runs now was answered the first time; None where answers are not given again.

    Raises IndexError where the forward has more operations than it had the first time.
    """
    answers = _again.get()
    return None if answers is None else answers.popleft()


def keep_answer(outputs: Tensor, asked: Tensor) -> None:
    """Keep what an operation was answered, where answers are kept. The tensors themselves become part of a graph."""
    answers = _kept.get()
    if answers is not None:
        answers.append((outputs.detach(), asked.detach()))


def name_in_graph(name: str) -> str:
    """The name by which the backward of an operation that runs now finds who asks: it may run in another thread."""
    return STAND_IN if _standing_in.get() else name


def register(asker: Asker) -> str:
    """A name for the asker of one layer, which is forgotten with the asker."""
    with _lock:
        name = f"{OWN}{next(_numbers)}"
        _of_layers[name] = asker
    return name


def open_grid(name: str, asker: Asker) -> None:
    """Let the operations on a grid use this asker until `close_grids`. Raises InvalidInput where there is one."""
    with _lock:
        if name in _of_grids:
            raise InvalidInput(f"this process asks the experts of {name!r} already", key="experts")
        _of_grids[name] = asker


def opened_grids() -> dict[str, Asker]:
    """The askers that `open_grid` was given."""
    with _lock:
        return dict(_of_grids)


def close_grids() -> dict[str, Asker]:
    """Forget them; returns what was there, to be closed."""
    with _lock:
        found = dict(_of_grids)
        _of_grids.clear()
    return found


def asker_of(name: str, config: str) -> Asker:
    """Who asks for an operation. name: of a grid or as `register` gave it. config: as text_of gave it.

    Raises InvalidInput where there is none.
    """
    if name == STAND_IN or _standing_in.get():
        if name.startswith(OWN):
            raise InvalidInput(
                "a layer RemoteMixtureOfExperts was made with an ExpertsClient, which only this process has",
                key="model",
                hint="make it with the ExpertsConfig, as RemoteMixtureOfExperts(load_experts(...))",
            )
        return _stand_in(config)
    with _lock:
        found = _of_layers.get(name) if name.startswith(OWN) else _of_grids.get(name)
    if found is None:
        raise InvalidInput(
            f"nobody in this process asks the experts of {config_from(config).name!r}",
            key="experts",
            hint="say in the job where their table is (experts: {peers: [HOST:PORT]}), or give the layer an"
            " ExpertsClient",
        )
    return found


def text_of(config: ExpertsConfig) -> str:
    """What a caller has to know of a grid, as text that a graph can hold."""
    return config.model_dump_json(include={"name", "grid", "expert", "input_shape", "output_shape", "batch"})


@lru_cache(64)
def config_from(text: str) -> ExpertsConfig:
    """The other way. What callers need not know has its default there."""
    return ExpertsConfig.model_validate_json(text)


@lru_cache(64)
def _stand_in(text: str) -> Asker:
    return Asker(StandIn(config_from(text)))


class StandIn(Caller):
    """All experts of a grid, which compute something simple and do not learn."""

    def __init__(self, config: ExpertsConfig) -> None:
        self.config = config

    def find(self, search: BeamSearch) -> list[list[tuple[Expert, str]]]:
        """The best experts, as if all were hosted."""
        search.take_all(self.config.grid)
        return [[(expert, "stand-in") for expert in found] for found in search.found()]

    def call(self, calls: Sequence[Call]) -> list[Future[Answered | Failed]]:
        """Answers at once."""
        futures: list[Future[Answered | Failed]] = []
        for call in calls:
            future: Future[Answered | Failed] = Future()
            future.set_result(Answered(self._answer(call), 0, 0, 0.0))
            futures.append(future)
        return futures

    def _answer(self, call: Call) -> Tensor:
        number = sum(one * (place + 1) for place, one in enumerate(call.expert))
        scale = 0.5 + (number % 7) / 7
        samples, own = call.tensors[0], self.config
        if own.input_shape == own.out_shape:
            return scale * call.tensors[-1]
        many = (len(samples), *[1] * len(own.out_shape))
        if call.updates is None:
            mean = samples.flatten(1).mean(1)
            return scale * mean.view(many).expand(len(samples), *own.out_shape).clone()
        of_mean = call.tensors[1].flatten(1).sum(1) / torch.Size(own.input_shape).numel()
        spread = of_mean.view(len(samples), *[1] * len(own.input_shape))
        return scale * spread.expand(len(samples), *own.input_shape).clone()
