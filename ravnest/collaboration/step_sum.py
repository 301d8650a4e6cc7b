"""The sum of a step's gradients, and its mean in the form in which everybody gets it.

In: contributions that have come whole, and whose they are. Out: the mean over all their samples, encoded once, and what
everyone makes of it: so all of them, whoever encoded it, apply the same bytes. What deviates from the last mean by more
than deviations.py allows is scaled down to that. While too few people are known, the first contributions are held back
until there are enough to compare them with, or until the step ends.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ravnest.collaboration.deviations import LEAST_PEOPLE, Deviations
from ravnest.collaboration.packing import MOST_FLOAT16, MOST_LOW_RANK, Feedback, Packing
from ravnest.collaboration.transfers import Said


@dataclass(frozen=True)
class _Given:
    person: str
    vectors: Mapping[str, Tensor]
    samples: int
    deviations: Mapping[str, float]


class StepSum:
    """The sums of one step after another. What a shorter form loses of a mean is added to the next one."""

    def __init__(self, packing: Packing) -> None:
        self._packing = packing
        self.forms = forms = packing.summed
        self.samples = 0
        """Samples of all that was added."""
        self._sums = {form.name: torch.zeros(form.elements, dtype=form.dtype) for form in forms}
        self._feedback = Feedback(packing)
        self._means = {form.name: torch.zeros(form.elements, dtype=form.dtype) for form in forms}
        self._deviations = {form.name: Deviations() for form in forms if form.elements}
        self._held: list[_Given] = []

    def add(self, vectors: Mapping[str, Tensor], samples: int, person: str = "") -> list[str]:
        """Add a person's sums over `samples` samples; returns whose contributions were scaled down now."""
        self.samples += samples
        found: dict[str, float] = {}
        for name, deviations in self._deviations.items():
            found[name] = float(torch.linalg.vector_norm(vectors[name] / samples - self._means[name]))
            deviations.saw(person, found[name], samples)
        self._held.append(_Given(person, vectors, samples, found))
        if any(len(one) < LEAST_PEOPLE for one in self._deviations.values()):
            return []
        return self._add_held()

    def finish(self, step: int) -> tuple[list[Said], dict[str, Tensor]]:
        """The messages of the mean, and the mean as all of them decode it. The sum begins again from zero."""
        self._add_held()
        means = [self._sums[form.name] / self.samples for form in self.forms]
        for form, mean in zip(self.forms, means, strict=True):
            if form.wire == "float16":
                mean.clamp_(-MOST_FLOAT16, MOST_FLOAT16)
            elif self._packing.low_rank is not None:
                mean.clamp_(-MOST_LOW_RANK, MOST_LOW_RANK)
        said = list(self._feedback.pieces("average", step, self.samples, means))
        decoded = self._packing.decoded(said)
        self.samples = 0
        for total in self._sums.values():
            total.zero_()
        self._means = decoded
        return said, decoded

    def _add_held(self) -> list[str]:
        held, self._held = self._held, []
        scaled = {given.person for given in held for name in self._sums if self._add_one(name, given)}
        return sorted(scaled)

    def _add_one(self, name: str, given: _Given) -> bool:
        """Add one of its vectors, and say whether it was scaled down."""
        total, vector, deviation = self._sums[name], given.vectors[name], given.deviations.get(name, 0.0)
        deviations = self._deviations.get(name)
        allowed = math.inf if deviations is None else deviations.allowed(given.samples)
        if deviation <= allowed:
            total += vector
            return False
        scale = allowed / deviation  # of an infinite deviation: 0
        total.add_(vector, alpha=scale).add_(self._means[name], alpha=(1.0 - scale) * given.samples)
        return True
