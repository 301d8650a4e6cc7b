"""Whether contributions were computed: micro-batches of them are computed again, and compared with the sums. Pure.

In: a peer's sum of gradients, the numbers of the micro-batches that it says are in it, and a function that computes one
of them by the same weights. Out: a refusal, once it is clear that a person's sums are not what they are said to be.

The micro-batch is chosen only when the whole sum is there, so nobody can compute that one alone; and none may be named
twice, or one would stand for all. Let G be a sum of m
gradients, and g one of them, chosen by chance. Whatever the gradients are like, the mean over that choice is

    E[ m <g, G> ] = <G, G>

So over several contributions of a person, the ratio  Σ m <g, G> / Σ <G, G>  is about 1. It is about −1 where signs are
turned, 0 where something else is sent, 1 / c for c times the sum, and below 1/2 where more than half of it was added.
Single ones say little where gradients of a sum nearly cancel each other, so a person is judged by its last LOOKED_AT.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from ravnest.collaboration.trainer import NotFinite, NotRead
from ravnest.errors import InvalidInput

LEAST_RATIO = 0.25
LEAST_LOOKS, LOOKED_AT = 16, 32
"""A person is judged by so many contributions that were looked into at least, and by the last ones."""

MOST_PEOPLE = 1024

Span = tuple[int, int]
"""The number of the first micro-batch, and how many follow each other from it on."""


class SpotChecks:
    """Which contributions are looked into, and what is found."""

    def __init__(
        self, share: float, micro_batch: int, again: Callable[[str, int], Tensor], draw: Callable[[], float]
    ) -> None:
        """
        Arguments:
            share: the part of all contributions that is looked into; 0: none, and nothing is asked of them.
            micro_batch: its samples.
            again: returns the gradient, flat, of a peer's micro-batch, by the seed of its order and the number.
            draw: returns numbers from 0 up to 1 that no peer can foresee.
        """
        self._share, self._micro_batch = share, micro_batch
        self._again, self._draw = again, draw
        self._looks: OrderedDict[str, deque[tuple[float, float]]] = OrderedDict()
        """By person: m <g, G> and <G, G> of the last looks."""

    def require(self, person: str, order: str, spans: Sequence[Span], gradient: Tensor, samples: int) -> None:
        """Look into a contribution, if chance wants it: the sum `gradient` over `samples` samples.

        `order`: seeds the peer's order of samples. Raises InvalidInput for one that does not name its micro-batches,
        and for every one that is looked into of a person whose sums are found to be something else.
        """
        if not self._share:
            return
        count = sum(many for _, many in spans)
        if count * self._micro_batch != samples:
            raise InvalidInput(f"{count} micro-batches are named for {samples} samples")
        if any(sum(before) > after[0] for before, after in pairwise(spans)):
            raise InvalidInput("micro-batches are named twice, or not in their order")
        if self._draw() >= self._share:
            return
        number = nth(spans, int(self._draw() * count))
        try:
            again = self._again(order, number).to(torch.float64) * self._micro_batch
        except NotRead:
            return  # whoever reads there hangs: that is no lie of anybody
        except NotFinite as error:
            raise InvalidInput(f"micro-batch {number}, computed again, cannot be in a sum: {error}") from None
        whole = gradient.to(torch.float64)
        looks = self._looks.setdefault(person, deque(maxlen=LOOKED_AT))
        self._looks.move_to_end(person)
        while len(self._looks) > MOST_PEOPLE:
            self._looks.popitem(last=False)
        looks.append((count * float(again.dot(whole)), float(whole.dot(whole))))
        expected = sum(length for _, length in looks)
        ratio = sum(found for found, _ in looks) / expected if expected else 0.0
        if len(looks) >= LEAST_LOOKS and ratio < LEAST_RATIO:
            raise InvalidInput(
                f"micro-batches of its last {len(looks)} contributions that were looked into, computed again, have"
                f" {ratio:.2f} of the part in them that they should have: it sends something else than it says"
            )


def nth(spans: Sequence[Span], at: int) -> int:
    """Return the number of the micro-batch at this place of the spans."""
    for first, many in spans:
        if at < many:
            return first + at
        at -= many
    raise IndexError(at)


def spans_of(numbers: Sequence[int]) -> list[Span]:
    """Return rising numbers as spans."""
    spans: list[Span] = []
    for number in numbers:
        if spans and number == sum(spans[-1]):
            spans[-1] = spans[-1][0], spans[-1][1] + 1
        else:
            spans.append((number, 1))
    return spans
