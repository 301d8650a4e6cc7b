"""Runs one unit of a stage so that what it saves for its backward is forgotten until the backward comes to it.

In: the function of a unit, its weights and its inputs. Out: its outputs, in whose graph nothing is kept but the unit's
inputs. Where autograd asks for a saved tensor, the unit runs again, with the weights, buffers, random numbers and casts
of the first time. So the numbers are the same, bit for bit. Autograd goes backwards through a stage, so the saved
tensors of one unit are in memory at a time.

torch.utils.checkpoint does this, too. But it runs a module again, and a stage's module may have newer weights by then.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

UnitFunction = Callable[[list[Tensor], torch.device, tuple[Tensor, ...]], tuple[Tensor, ...]]
Seen = Callable[[Sequence[Tensor]], None]


def run_forgetting(
    function: UnitFunction,
    weights: list[Tensor],
    written: Sequence[int],
    device: torch.device,
    inputs: tuple[Tensor, ...],
    seen: Seen,
) -> tuple[Tensor, ...]:
    """The outputs of `function(weights, device, inputs)`.

    written: the places among `weights` of buffers that the function may write to. They are written to once. seen: is
    given what the unit saves, each time that it runs again.
    """
    unit = _Forgotten(function, weights, written, device, inputs, seen)
    with saved_tensors_hooks(unit.forget, unit.saved):
        return function(weights, device, inputs)


class _Forgotten:
    """One run of a unit. The graph of its outputs refers to it; it refers to the graph of its inputs alone."""

    def __init__(
        self,
        function: UnitFunction,
        weights: list[Tensor],
        written: Sequence[int],
        device: torch.device,
        inputs: tuple[Tensor, ...],
        seen: Seen,
    ) -> None:
        self._function = function
        self._weights = [*weights]
        self._written = tuple(written)
        for place in self._written:
            self._weights[place] = weights[place].clone()
        self._device = device
        self._inputs = inputs
        self._seen = seen
        self._random = _random_state(device)
        self._casts = torch.is_autocast_enabled(device.type), torch.get_autocast_dtype(device.type)
        self._count = 0
        self._again: dict[int, Tensor] = {}

    def forget(self, _: Tensor) -> int:
        """Takes the place of a tensor that autograd saves."""
        self._count += 1
        return self._count - 1

    def saved(self, place: int) -> Tensor:
        """The tensor that was saved at a place. A backward asks for each once; one that is repeated, again."""
        if place not in self._again:
            self._run_again()
        return self._again.pop(place)

    def _run_again(self) -> None:
        found: list[Tensor] = []
        weights = [*self._weights]
        for place in self._written:
            weights[place] = weights[place].clone()  # the next time it has to be as it was, too
        inputs = tuple(tensor.detach().requires_grad_(tensor.requires_grad) for tensor in self._inputs)
        before = _random_state(self._device)
        _set_random_state(self._device, self._random)
        try:
            with ExitStack() as contexts:
                for context in self._contexts(found):
                    contexts.enter_context(context)
                self._function(weights, self._device, inputs)
        finally:
            _set_random_state(self._device, before)
        if len(found) != self._count:
            raise RuntimeError(f"a unit saved {self._count} tensors for its backward, and {len(found)} when run again")
        self._seen(found)
        self._again = {place: tensor.detach() for place, tensor in enumerate(found)}

    def _contexts(self, found: list[Tensor]) -> Sequence[AbstractContextManager[Any]]:
        enabled, dtype = self._casts
        return (
            torch.enable_grad(),
            torch.autocast(self._device.type, dtype, enabled, cache_enabled=False),
            saved_tensors_hooks(found.append, _never_asked),
        )


def _never_asked(_: object) -> Tensor:
    raise AssertionError("the graph of a unit that runs again has no backward of its own")


def _random_state(device: torch.device) -> Tensor:
    return torch.get_rng_state() if device.type == "cpu" else torch.cuda.get_rng_state(device)


def _set_random_state(device: torch.device, state: Tensor) -> None:
    if device.type == "cpu":
        torch.set_rng_state(state)
    else:
        torch.cuda.set_rng_state(state, device)
