"""Where a stage computes, and how tensors come there and back: messages are made of host memory.

On the CPU nothing is moved. On a GPU copies go through pinned memory on a stream of their own, so that they do not wait
behind what is queued for computing, nor that for them. Decides nothing about what is computed.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ravnest.errors import RunFailed

Tensors = tuple[Tensor, ...]


class HostDevice:
    """The CPU."""

    def bring(self, tensors: Sequence[Tensor]) -> Tensors:
        """Tensors of host memory, where the stage computes; each a leaf without a gradient."""
        return tuple(tensors)

    def take(self, tensors: Sequence[Tensor]) -> Tensors:
        """The other way: in host memory, and complete when this returns."""
        return tuple(tensors)

    def seed(self, seed: int) -> None:
        """What torch.manual_seed does, which for the CPU alone takes 1 µs and not 160: it formats the stack for every
        kind of accelerator that there might be."""
        torch.default_generator.manual_seed(seed)

    def settle(self) -> None:
        """Wait until all that was asked for is computed, so that the time that it takes is known."""


class CudaDevice(HostDevice):
    """A GPU. Belongs to one thread."""

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
    """The device that nodes.yaml names for a stage's node. Raises RunFailed where this machine has none such."""
    device = torch.device(name)
    if device.type == "cpu":
        return HostDevice()
    if device.type != "cuda":
        raise RunFailed(f"the node's device is {name}, and stages compute on cpu or cuda only")
    if not torch.cuda.is_available():
        raise RunFailed(f"the node's device is {name}, but torch finds no CUDA on this machine")
    if (device.index or 0) >= torch.cuda.device_count():
        raise RunFailed(f"the node's device is {name}, but this machine has {torch.cuda.device_count()} CUDA devices")
    return CudaDevice(torch.device("cuda", device.index or 0))
