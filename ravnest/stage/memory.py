"""Measures the memory that a stage's tensors take at most, by part, to be compared with the plan.

In: tensors, and sizes in bytes. Out: the peak of each part, in bytes. What counts is the memory of tensors that outlive
a computation; what a single step or merge needs beside them, and frees again, does not. Each part has its own peak.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ravnest.errors import RunFailed
from ravnest.formatting import size
from ravnest.stage.setup import MemoryCap

_CAST = "ToCopyBackward0"
_CAST_AND_VIEWS = {_CAST, "TBackward0", "TransposeBackward0", "PermuteBackward0", "ViewBackward0", "ExpandBackward0"}

PARTS = ("weights", "gradients", "optimizer", "averaging", "activations", "arrived")
"""The parts, in this order: every live version of the weights, with the buffers and the cast forms of weights; the
gradient being accumulated; the optimizer's state; anchors, progress on its way and its averages; what micro-batches in
flight keep for their backward; boundary tensors and tied parameters that have arrived and wait."""


class Peaks:
    """The most bytes seen of each part. Each part may be reported by another thread."""

    def __init__(self) -> None:
        self.bytes = dict.fromkeys(PARTS, 0)
        self.grown = False
        """Whether a peak has risen since somebody last set this to False."""

    def saw(self, part: str, count: int) -> None:
        """Take notice that a part takes `count` bytes now."""
        if count > self.bytes[part]:
            self.bytes[part] = count
            self.grown = True

    def require_within(self, cap: MemoryCap, stage: str) -> None:
        """Raises RunFailed where all parts and the process itself take more than the node has. `stage`: for the
        message."""
        tensors = sum(self.bytes.values())
        if tensors + cap.process_bytes > cap.node_bytes:
            raise RunFailed(
                f"{stage} takes more memory than its node {cap.node!r} has: {size(tensors + cap.process_bytes)} "
                f"({size(tensors)} of tensors, {size(cap.process_bytes)} of the process) of {size(cap.node_bytes)}"
            )


class ActivationBytes:
    """The bytes that micro-batches in flight keep for their backwards. They are measured at the first forward of each
    shape of inputs, and counted from then on. One thread calls all methods."""

    def __init__(self, ours: Callable[[], Iterable[Tensor]], peaks: Peaks) -> None:
        """`ours`: returns the stage's weights and buffers, which are counted elsewhere."""
        self._ours = ours
        self._peaks = peaks
        self.cast_bytes = 0
        """The bytes of one version of the weights in the precision that it is cast to; 0 where it is not."""
        self._of_shapes: dict[tuple[torch.Size, ...], int] = {}
        self._of_units: dict[int, int] = {}
        self._alive: dict[int, int] = {}
        self._now = 0

    @contextmanager
    def forward(
        self,
        micro_batch: int,
        inputs: Sequence[Tensor],
        *,
        forget: bool = False,
        passed: Callable[[], Sequence[Tensor]] = lambda: (),
    ) -> Iterator[None]:
        """The context of a forward, which is measured. Its inputs count, too; with `forget` they alone do, until
        `replayed`. passed: returns what the forward has kept beside what autograd saved."""
        shapes = tuple(tensor.shape for tensor in inputs)
        if shapes in self._of_shapes:
            yield
            passed()
        else:
            saved: list[Tensor] = [*inputs]
            cast: list[Tensor] = []

            def pack(tensor: Tensor) -> Tensor:
                alone = tensor.detach()  # the tensor itself would be tied to its own graph in a cycle
                (cast if _is_cast_weight(tensor) else saved).append(alone)
                return alone

            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                yield
            self._of_shapes[shapes] = _distinct_bytes([*saved, *passed()], self._ours())
            self.cast_bytes = _distinct_bytes(cast, ())
        self._alive[micro_batch] = _distinct_bytes(inputs, self._ours()) if forget else self._of_shapes[shapes]
        self._now += self._alive[micro_batch]
        self._peaks.saw("activations", self._now)

    def replayed(self, micro_batch: int, inputs: Sequence[Tensor]) -> None:
        """The forward of a micro-batch was run again, so what it keeps is here again."""
        self._now -= self._alive[micro_batch]
        self._alive[micro_batch] = self._of_shapes[tuple(tensor.shape for tensor in inputs)]
        self._now += self._alive[micro_batch]
        self._peaks.saw("activations", self._now)

    def unit_again(self, unit: int, saved: Sequence[Tensor]) -> None:
        """A unit was run again for its backward, and this is what it keeps until that is done."""
        if unit not in self._of_units:
            cast = [tensor for tensor in saved if _is_cast_weight(tensor)]
            self.cast_bytes += _distinct_bytes(cast, ())
            self._of_units[unit] = _distinct_bytes(saved, (*self._ours(), *cast))
        self._peaks.saw("activations", self._now + self._of_units[unit])

    def split(self, micro_batch: int, gradients: Iterable[Tensor]) -> None:
        """The first part of a backward is done; for the second part the micro-batch keeps these `gradients`, too."""
        more = _distinct_bytes(gradients, self._ours())
        self._alive[micro_batch] += more
        self._now += more
        self._peaks.saw("activations", self._now)

    def backward(self, micro_batch: int) -> None:
        """The backward of a micro-batch is done, so it keeps nothing any more."""
        self._now -= self._alive.pop(micro_batch)


def _is_cast_weight(tensor: Tensor) -> bool:
    """Whether nothing but a cast and views lies between a tensor and a parameter."""
    node, cast = tensor.grad_fn, False
    while node is not None and node.name() in _CAST_AND_VIEWS:
        cast = cast or node.name() == _CAST
        node = node.next_functions[0][0]
    return cast and node is not None and isinstance(getattr(node, "variable", None), nn.Parameter)


def _distinct_bytes(tensors: Iterable[Tensor], but: Iterable[Tensor]) -> int:
    """The bytes of the memory behind `tensors`, each piece counted once, without the memory behind `but`."""
    ours = {tensor.untyped_storage().data_ptr() for tensor in but}
    storages = {storage.data_ptr(): storage.nbytes() for storage in (t.untyped_storage() for t in tensors)}
    return sum(count for where, count in storages.items() if where not in ours)
