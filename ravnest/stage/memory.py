"""What a stage's tensors take at most, by part: measured, to be compared with the plan.

Decides what counts: the memory of tensors that outlive a computation. What a single step or merge needs beside them,
and frees again, does not. Each part is taken at its own peak.
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
"""Every live version of the weights, with the buffers and what they were cast to; the gradient being accumulated; the
optimizer's state; anchors, progress on its way and its averages; what micro-batches in flight keep for their backward;
boundary tensors, and what concerns tied parameters, that have arrived and wait."""


class Peaks:
    """The most bytes seen of each part. Each part may be told by another thread."""

    def __init__(self) -> None:
        self.bytes = dict.fromkeys(PARTS, 0)
        self.grown = False
        """Whether a peak has risen since somebody last set this to False."""

    def saw(self, part: str, count: int) -> None:
        if count > self.bytes[part]:
            self.bytes[part] = count
            self.grown = True

    def require_within(self, cap: MemoryCap, stage: str) -> None:
        """Raises RunFailed when all parts and the process itself take more than the node has."""
        tensors = sum(self.bytes.values())
        if tensors + cap.process_bytes > cap.node_bytes:
            raise RunFailed(
                f"{stage} takes more memory than its node {cap.node!r} has: {size(tensors + cap.process_bytes)} "
                f"({size(tensors)} of tensors, {size(cap.process_bytes)} of the process) of {size(cap.node_bytes)}"
            )


class ActivationBytes:
    """What the micro-batches in flight keep for their backwards: measured at the first forward of each shape of inputs,
    and counted from then on. One thread calls it."""

    def __init__(self, ours: Callable[[], Iterable[Tensor]], peaks: Peaks) -> None:
        """`ours`: the stage's weights and buffers, which are counted elsewhere."""
        self._ours = ours
        self._peaks = peaks
        self.cast_bytes = 0
        """What one version of the weights takes in the precision that it was cast to, where it was."""
        self._of_shapes: dict[tuple[torch.Size, ...], int] = {}
        self._alive: dict[int, int] = {}
        self._now = 0

    @contextmanager
    def forward(self, micro_batch: int, inputs: Sequence[Tensor], *, forget: bool = False) -> Iterator[None]:
        """Around a forward. Its inputs are kept, too; with `forget` nothing else is, until `replayed`."""
        shapes = tuple(tensor.shape for tensor in inputs)
        if shapes in self._of_shapes:
            yield
        else:
            saved: list[Tensor] = [*inputs]
            cast: list[Tensor] = []

            def pack(tensor: Tensor) -> Tensor:
                alone = tensor.detach()  # the tensor itself would be tied to its own graph in a cycle
                (cast if _is_cast_weight(tensor) else saved).append(alone)
                return alone

            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                yield
            self._of_shapes[shapes] = _distinct_bytes(saved, self._ours())
            self.cast_bytes = _distinct_bytes(cast, ())
        self._alive[micro_batch] = _distinct_bytes(inputs, self._ours()) if forget else self._of_shapes[shapes]
        self._now += self._alive[micro_batch]
        self._peaks.saw("activations", self._now)

    def replayed(self, micro_batch: int, inputs: Sequence[Tensor]) -> None:
        """What was forgotten is here again."""
        self._now -= self._alive[micro_batch]
        self._alive[micro_batch] = self._of_shapes[tuple(tensor.shape for tensor in inputs)]
        self._now += self._alive[micro_batch]
        self._peaks.saw("activations", self._now)

    def split(self, micro_batch: int, gradients: Iterable[Tensor]) -> None:
        """Half of its backward is done; for the other half it keeps these, too."""
        more = _distinct_bytes(gradients, self._ours())
        self._alive[micro_batch] += more
        self._now += more
        self._peaks.saw("activations", self._now)

    def backward(self, micro_batch: int) -> None:
        """It keeps nothing any more."""
        self._now -= self._alive.pop(micro_batch)


def _is_cast_weight(tensor: Tensor) -> bool:
    """Whether nothing but a cast, and views, lie between it and a parameter."""
    node, cast = tensor.grad_fn, False
    while node is not None and node.name() in _CAST_AND_VIEWS:
        cast = cast or node.name() == _CAST
        node = node.next_functions[0][0]
    return cast and node is not None and isinstance(getattr(node, "variable", None), nn.Parameter)


def _distinct_bytes(tensors: Iterable[Tensor], but: Iterable[Tensor]) -> int:
    """Of the memory behind `tensors`, each piece once, without what lies behind `but`."""
    ours = {tensor.untyped_storage().data_ptr() for tensor in but}
    storages = {storage.data_ptr(): storage.nbytes() for storage in (t.untyped_storage() for t in tensors)}
    return sum(count for where, count in storages.items() if where not in ours)
