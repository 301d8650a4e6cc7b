"""The sum of a step's gradients, and its mean in the form in which everybody gets it.

In: contributions that have come whole. Out: the mean over all their samples, encoded once, and what everyone makes of
it: so all of them, whoever encoded it, apply the same bytes.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ravnest.collaboration.transfers import Form, Said, pieces
from ring_allreduce.ring import decode
from ring_allreduce.transport import Message


class StepSum:
    """The sums of one step after another. What a shorter form loses of a mean is added to the next one."""

    def __init__(self, forms: Sequence[Form]) -> None:
        self.forms = tuple(forms)
        self.samples = 0
        self._sums = {form.name: torch.zeros(form.elements, dtype=form.dtype) for form in forms}
        self._lost = {form.name: torch.zeros(form.elements, dtype=form.dtype) for form in forms if form.wire != "exact"}

    def add(self, vectors: Mapping[str, Tensor], samples: int) -> None:
        """Add one peer's sums over `samples` samples."""
        for name, total in self._sums.items():
            total += vectors[name]
        self.samples += samples

    def finish(self, step: int) -> tuple[list[Said], dict[str, Tensor]]:
        """The messages of the mean, and the mean as all of them decode it. The sum begins again from zero."""
        means = [(form, self._sums[form.name] / self.samples) for form in self.forms]
        said = list(pieces("average", step, self.samples, means, residuals=self._lost))
        decoded = decoded_vectors(said, self.forms)
        self.samples = 0
        for total in self._sums.values():
            total.zero_()
        return said, decoded


def decoded_vectors(
    said: Sequence[tuple[Message, tuple[Tensor, ...]]], forms: Sequence[Form], weight: float = 1.0
) -> dict[str, Tensor]:
    """What a receiver makes of a transfer's messages, of a mean or, with its samples as `weight`, of a sum.

    Raises InvalidInput where it is not finite.
    """
    parts = [tensors for _, tensors in said if tensors]
    vectors: dict[str, Tensor] = {}
    at = 0
    for form in forms:
        vector = torch.empty(form.elements, dtype=form.dtype)
        for start in range(0, form.elements, form.piece_elements):
            stop = min(start + form.piece_elements, form.elements)
            vector[start:stop] = decode(form.wire, parts[at], stop - start, weight, form.dtype)
            at += 1
        vectors[form.name] = vector
    return vectors
