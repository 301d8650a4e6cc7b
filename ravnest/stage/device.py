"""Where a stage computes, and in which precision.

In: a device's name, and a job's precision. Out: what moves tensors to the device and back, and the context in which
forwards run.

Messages are made of host memory. On the CPU nothing is moved. On a GPU, copies go through pinned memory on a stream of
their own, so that neither copies nor computations wait for each other's queue.

In bfloat16 or float16, torch's autocast chooses the operations that are computed in that type. A weight is cast once
for each version, not once for each micro-batch, since its cast form stays alive with every graph: autocast's cache is
kept open until the weights change. Gradients cross cuts at their true size, and each stage scales its own backward
(`scaled_backward` in backward.py). A backward that overflows is run again at half the scale, so no stage ever skips an
update, and no stage has to ask the others whether they do.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from ravnest.errors import RunFailed
from ravnest.training.precision import LossScale, Precision

Tensors = tuple[Tensor, ...]


class HostDevice:
    """The CPU, where tensors already are in host memory."""

    def bring(self, tensors: Sequence[Tensor]) -> Tensors:
        """Move tensors of host memory to the device. Each result is a leaf without a gradient."""
        return tuple(tensors)

    def take(self, tensors: Sequence[Tensor]) -> Tensors:
        """Move tensors of the device to host memory. They are complete when this returns."""
        return tuple(tensors)

    def seed(self, seed: int) -> None:
        """Seed the random numbers of the device.

        torch.manual_seed takes 160 µs, since it formats the stack for every kind of accelerator that there might be.
        Seeding the CPU's generator alone takes 1 µs.
        """
        torch.default_generator.manual_seed(seed)

    def settle(self) -> None:
        """Wait until everything submitted is computed, so that the time it takes can be measured."""


class CudaDevice(HostDevice):
    """A GPU. An object of this class is used by one thread only."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._copying = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def bring(self, tensors: Sequence[Tensor]) -> Tensors:
        computing = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._copying):
            here = tuple(tensor.pin_memory().to(self._device, non_blocking=True) for tensor in tensors)
        computing.wait_stream(self._copying)
        for tensor in here:
            tensor.record_stream(computing)  # its memory is not used again before the computation is through
        return here

    def take(self, tensors: Sequence[Tensor]) -> Tensors:
        if not tensors:
            return ()  # nothing to wait for
        self._copying.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._copying):
            there = tuple(
                torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
                for tensor in tensors
            )
        for tensor in tensors:
            tensor.record_stream(self._copying)
        self._copying.synchronize()
        return there

    def seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def settle(self) -> None:
        torch.cuda.current_stream(self._device).synchronize()


def stage_device(name: str) -> HostDevice:
    """The device that nodes.yaml names for a stage's node. Raises RunFailed where this machine has no such device."""
    require_device(name)
    device = torch.device(name)
    return HostDevice() if device.type == "cpu" else CudaDevice(torch.device("cuda", device.index or 0))


def require_device(name: str) -> None:
    """Raises RunFailed where this machine has no such device. Nothing is made on it."""
    device = torch.device(name)
    if device.type == "cpu":
        return
    if device.type != "cuda":
        raise RunFailed(f"the node's device is {name}, and stages compute on cpu or cuda only")
    if not torch.cuda.is_available():
        raise RunFailed(f"the node's device is {name}, but torch finds no CUDA on this machine")
    if (device.index or 0) >= torch.cuda.device_count():
        raise RunFailed(f"the node's device is {name}, but this machine has {torch.cuda.device_count()} CUDA devices")


def lacking_here(names: Iterable[str]) -> list[str]:
    """Those of the devices that this machine lacks, each once and sorted."""
    lacking = []
    for name in sorted(set(names)):
        try:
            require_device(name)
        except RunFailed:
            lacking.append(name)
    return lacking


DTYPES: dict[Precision, torch.dtype] = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class MixedPrecision:
    """The precision of one stage's forwards and backwards. All calls come from the compute thread."""

    def __init__(self, precision: Precision, device: str) -> None:
        self._dtype = DTYPES.get(precision)
        self._device_type = torch.device(device).type
        self._is_open = False
        self.scale = LossScale() if precision == "float16" else None
        """The scale of gradients in float16, and None in other precisions."""

    @contextmanager
    def forward(self) -> Iterator[None]:
        """The context in which a forward runs."""
        if self._dtype is None:
            yield
            return
        if not self._is_open:
            torch.autocast_increment_nesting()  # the cache is emptied when the outermost context is left
            self._is_open = True
        # What an evaluation casts has no gradient: torch before 2.11 would give it to the next training forward.
        with torch.autocast(self._device_type, self._dtype, cache_enabled=torch.is_grad_enabled()):
            yield

    def weights_changed(self) -> None:
        """Drop the cast forms of weights, which are out of date."""
        if self._is_open:
            torch.autocast_decrement_nesting()
            torch.clear_autocast_cache()
            self._is_open = False
