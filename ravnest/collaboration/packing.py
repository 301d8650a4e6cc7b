"""How the vectors of a collaboration travel: in a shorter form, in low rank, and what is lost of them and fed back.

In: sums over samples, or their means. Out: the messages that carry them, and what every receiver makes of these, bit by
bit. A sender keeps what a shorter form has lost, and adds it to what it sends next:

    sent = Pack(x + s lost),   lost = x + lost − Unpack(sent)

so that all that was ever given is what was ever sent and what its sender still holds. What is lost is kept as a sum
over samples, never as a mean: it counts the same, however many samples the next contribution has. In low rank, whose
losses may be several contributions, a contribution of fewer samples than usual takes a share s of it alone: else its
mean would look like a lie. Each sender keeps its own. Who joins begins with nothing; who leaves takes along what it
has not sent, and changes nothing at others.
"""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from ravnest.collaboration.low_rank import LowRank
from ravnest.collaboration.messages import TransferMessage, What
from ravnest.collaboration.transfers import MOST_NUMBER, Form, Incoming, Said, pieces
from ring_allreduce.ring import decode

MOST_FLOAT16 = 61_440.0
"""A mean has no larger numbers where it travels as float16: they would be infinite there."""

MOST_LOW_RANK = 1e15
"""Nor in low rank: its thin matrices, and their product, would be."""


class Packing:
    """What is summed and what travels of it. It has no state."""

    def __init__(self, summed: Sequence[Form], low_rank: LowRank | None = None) -> None:
        """`low_rank`: divides the first of the vectors, which is a gradient."""
        self.summed = tuple(summed)
        self.low_rank = low_rank
        first, *others = self.summed
        if low_rank is not None:
            first = Form(first.name, first.dtype, low_rank.packed_elements, first.wire)
        self.sent = (first, *others)
        """The vectors as they travel."""

    def incoming(self, began: TransferMessage) -> Incoming:
        """A contribution or an average begins to come in. Raises InvalidInput."""
        return Incoming(began, self.sent, means=self.low_rank is not None)

    def whole(self, vectors: Mapping[str, Tensor], samples: float) -> dict[str, Tensor]:
        """What has come, as it is summed; `samples`: those behind a sum, 1 for a mean. Raises InvalidInput."""
        found = dict(vectors)
        if self.low_rank is not None:
            name = self.summed[0].name
            found[name] = self.low_rank.unpacked(found[name], MOST_NUMBER / samples).mul_(samples)
        return found

    def decoded(self, said: Sequence[Said], samples: float = 1.0) -> dict[str, Tensor]:
        """What a receiver makes of all messages of a transfer. Raises InvalidInput where it is not finite."""
        parts = [tensors for _, tensors in said if tensors]
        weight = 1.0 if self.low_rank is not None else samples
        vectors: dict[str, Tensor] = {}
        at = 0
        for form in self.sent:
            vector = torch.empty(form.elements, dtype=form.dtype)
            for start in range(0, form.elements, form.piece_elements):
                stop = min(start + form.piece_elements, form.elements)
                vector[start:stop] = decode(form.wire, parts[at], stop - start, weight, form.dtype)
                at += 1
            vectors[form.name] = vector
        return self.whole(vectors, samples)


class Feedback:
    """One sender's vectors, and what has been lost of them so far."""

    def __init__(self, packing: Packing) -> None:
        self._packing = packing
        lossy = [form for form in packing.summed if form.wire != "exact"]
        if packing.low_rank is not None and packing.summed[0] not in lossy:
            lossy.append(packing.summed[0])
        self.lost = {form.name: torch.zeros(form.elements, dtype=form.dtype) for form in lossy}
        """By name: what was given and not sent, as a sum over samples."""
        self._bases = [] if packing.low_rank is None else packing.low_rank.first_bases()
        self._usual = 0.0  # samples behind the last sums, smoothed

    def pieces(
        self,
        what: What,
        step: int,
        samples: int,
        vectors: Sequence[Tensor],
        weight: float = 1.0,
        micro_batches: Sequence[tuple[int, int]] = (),
    ) -> Iterator[Said]:
        """The messages of one transfer: the vectors in their order, sums with `weight` samples behind them, or means.

        They have to be taken before those of the next transfer. Without a low rank they are made while they are taken.
        """
        named = list(zip(self._packing.sent, vectors, strict=True))
        low_rank = self._packing.low_rank
        if low_rank is None:
            return pieces(what, step, samples, named, weight, self.lost, micro_batches)
        form, lost = self._packing.sent[0], self.lost[self._packing.summed[0].name]
        share = min(1.0, weight / self._usual) if self._usual else 1.0
        self._usual = (self._usual + weight) / 2 if self._usual else weight
        packed = low_rank.packed((lost * share).add_(vectors[0]).div_(weight), self._bases)
        if form.wire == "float16":
            packed.clamp_(-MOST_FLOAT16, MOST_FLOAT16)
        said = list(pieces(what, step, samples, [(form, packed), *named[1:]], micro_batches=micro_batches))
        lost.add_(vectors[0]).sub_(self._packing.decoded(said, weight)[form.name])
        return iter(said)
