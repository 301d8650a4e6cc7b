"""The sum of a step's gradients, and its mean in the form in which everybody gets it.

In: contributions that have come whole, and whose they are. Out: the mean over all their samples, encoded once, and what
everyone makes of it: so all of them, whoever encoded it, apply the same bytes. What deviates from the last mean by more
than deviations.py allows is scaled down to that. While too few people are known, the first contributions are held back
until there are enough to compare them with, or until the step ends; of each person fewer than MOST_HELD.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ravnest.collaboration.deviations import LEAST_PEOPLE, Deviations
from ravnest.collaboration.packing import MOST_FLOAT16, MOST_LOW_RANK, Feedback, Packing
from ravnest.collaboration.shares import Division
from ravnest.collaboration.transfers import Said
from ravnest.errors import RunFailed

MOST_HELD = 8
"""Once so many contributions of a person are held back, all of that person's are added: each takes a model's memory."""


@dataclass(frozen=True)
class _Given:
    person: str
    vectors: Mapping[str, Tensor]
    samples: int
    deviations: Mapping[str, float]
    numbered: tuple[int, int]


class PartSum:
    """The sums of one step after another, of a whole vector or a part. What a shorter form loses of a mean is added to
    the next one."""

    def __init__(self, packing: Packing) -> None:
        self._packing = packing
        self.forms = forms = packing.summed
        self.samples = 0
        """Samples of all that was added."""
        self._sums = {form.name: torch.zeros(form.elements, dtype=form.dtype) for form in forms}
        self._feedback = Feedback(packing)
        self._means: Mapping[str, Tensor] = {form.name: torch.zeros(form.elements, dtype=form.dtype) for form in forms}

    def begin_from(self, means: Mapping[str, Tensor]) -> None:
        """Count from these as the last step's means, and from a sum of nothing."""
        self._means = means
        self.reset()

    def reset(self) -> None:
        """Forget what was added since the last mean."""
        self.samples = 0
        for total in self._sums.values():
            total.zero_()

    def lost_so_far(self) -> dict[str, Tensor]:
        """A copy of what shorter forms have lost and that was not sent yet."""
        return {name: lost.clone() for name, lost in self._feedback.lost.items()}

    def restore_lost(self, lost: Mapping[str, Tensor]) -> None:
        """The mean that was made since lost_so_far() counts for nobody."""
        for name, one in lost.items():
            self._feedback.lost[name].copy_(one)

    def deviation(self, name: str, vector: Tensor, samples: int) -> float:
        """How far a contribution's mean is from the last step's."""
        return float(torch.linalg.vector_norm(vector / samples - self._means[name]))

    def add_scaled(self, name: str, vector: Tensor, samples: int, scale: float) -> None:
        """Add a sum, drawn to the last mean unless `scale` is 1."""
        if scale == 1.0:
            self._sums[name] += vector
        else:
            self._sums[name].add_(vector, alpha=scale).add_(self._means[name], alpha=(1.0 - scale) * samples)

    def finish(self, step: int) -> tuple[list[Said], dict[str, Tensor]]:
        """The messages of the mean, and the mean as all of them decode it. The sum begins again from zero.

        Raises RunFailed where nothing was added: better no machine goes on than all of them with NaN.
        """
        if not self.samples:
            raise RunFailed(f"a mean of nothing at step {step}")
        means = [self._sums[form.name] / self.samples for form in self.forms]
        for form, mean in zip(self.forms, means, strict=True):
            if form.wire == "float16":
                mean.clamp_(-MOST_FLOAT16, MOST_FLOAT16)
            elif self._packing.low_rank is not None:
                mean.clamp_(-MOST_LOW_RANK, MOST_LOW_RANK)
        said = list(self._feedback.pieces("average", step, self.samples, means))
        decoded = self._packing.decoded(said)
        self.begin_from(decoded)
        return said, decoded


class StepSum(PartSum):
    """The sums of a machine that also says how much each contribution counts."""

    def __init__(self, packing: Packing) -> None:
        super().__init__(packing)
        self._deviations = {form.name: Deviations() for form in self.forms if form.elements}
        self._held: list[_Given] = []
        self._scales: list[tuple[int, int, float]] = []

    def divided(self, division: Division) -> "StepSum":
        """The sum of part 0 alone. What is known of people is the same, and what it has lost of that part moves."""
        part = StepSum(division.packing_of(0))
        part._deviations = self._deviations
        part.begin_from(division.vectors_of(0, self._means))
        for name, lost in part._feedback.lost.items():
            own = self._feedback.lost[name][: len(lost)]
            lost.copy_(own)
            own.zero_()
        return part

    def take_back(self, part: "StepSum") -> None:
        """What part 0's sum has lost is this one's again."""
        for name, lost in part._feedback.lost.items():
            self._feedback.lost[name][: len(lost)].add_(lost)
            lost.zero_()

    def reset(self) -> None:
        """Forget what was added or held back since the last mean."""
        super().reset()
        self._held, self._scales = [], []

    def add(
        self,
        vectors: Mapping[str, Tensor],
        samples: int,
        person: str = "",
        *,
        elsewhere: float = 0.0,
        numbered: tuple[int, int] = (0, 0),
    ) -> list[str]:
        """Add a person's sums over `samples` samples; returns whose contributions were scaled down now.

        `elsewhere`: how far the other parts of its gradient are from their last mean. `numbered`: its visit and number,
        under which take_scales() names it.
        """
        self.samples += samples
        found: dict[str, float] = {}
        for name, deviations in self._deviations.items():
            found[name] = self.deviation(name, vectors[name], samples)
            if name == self.forms[0].name and elsewhere:
                found[name] = math.hypot(found[name], elsewhere)
            deviations.saw(person, found[name], samples)
        self._held.append(_Given(person, vectors, samples, found, numbered))
        if any(len(one) < LEAST_PEOPLE for one in self._deviations.values()):
            its_own = [given for given in self._held if given.person == person]
            if len(its_own) < MOST_HELD:
                return []
            self._held = [given for given in self._held if given.person != person]
            return self._add_all(its_own)
        return self.add_held()

    def add_held(self) -> list[str]:
        """Add what was held back, since it could be compared with too few; returns who was scaled down."""
        held, self._held = self._held, []
        return self._add_all(held)

    def _add_all(self, held: list[_Given]) -> list[str]:
        scaled = {given.person for given in held for name in self._sums if self._add_one(name, given)}
        return sorted(scaled)

    def take_scales(self) -> list[tuple[int, int, float]]:
        """(visit, number, scale) of the gradients that were added since this was last asked for, in their order."""
        taken, self._scales = self._scales, []
        return taken

    def finish(self, step: int) -> tuple[list[Said], dict[str, Tensor]]:
        """As in PartSum; what was held back counts."""
        self.add_held()
        return super().finish(step)

    def _add_one(self, name: str, given: _Given) -> bool:
        """Add one of its vectors, and say whether it was scaled down."""
        deviation, deviations = given.deviations.get(name, 0.0), self._deviations.get(name)
        allowed = math.inf if deviations is None else deviations.allowed(given.samples)
        scale = 1.0 if deviation <= allowed else allowed / deviation  # of an infinite deviation: 0
        self.add_scaled(name, given.vectors[name], given.samples, scale)
        if name == self.forms[0].name:
            self._scales.append((*given.numbered, scale))
        return deviation > allowed
