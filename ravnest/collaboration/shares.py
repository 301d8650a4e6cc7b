"""How a vector is divided among machines that add it up: ranges of the gradient, and transfers in as many parts. Pure.

In: how vectors travel, and where ranges end. Out: how each part travels, the messages of a whole transfer as those of
its parts, and back. The backbone that serves has part 0: the first range, and all that is no gradient. Ranges end where
pieces of the whole end, so a piece has the same bytes in a part as in the whole, in every form on the wire: a
contribution is encoded once, wherever its pieces go.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ravnest.collaboration.messages import PieceMessage, TensorMessage, TransferMessage
from ravnest.collaboration.packing import Packing
from ravnest.collaboration.transfers import Form, Said
from ravnest.errors import InvalidInput


@dataclass(frozen=True)
class Division:
    """Part 0 is what stands before `bounds[0]` and the other vectors; part p is bounds[p - 1] to bounds[p]."""

    packing: Packing
    bounds: tuple[int, ...]

    def __post_init__(self) -> None:
        """Raises InvalidInput for ranges that are none, or do not end where pieces do."""
        form = self.packing.sent[0]
        rises = all(one < other for one, other in zip((0, *self.bounds), self.bounds, strict=False))
        even = all(bound % form.piece_elements == 0 for bound in self.bounds[:-1])
        if self.packing.low_rank is not None or not rises or not even or self.bounds[-1:] != (form.elements,):
            raise InvalidInput(f"ranges that end at {self.bounds} divide no gradient of {form.elements} elements")

    @property
    def parts(self) -> int:
        """How many there are."""
        return len(self.bounds)

    def span(self, part: int) -> slice:
        """The elements of the gradient that a part has."""
        return slice(self.bounds[part - 1] if part else 0, self.bounds[part])

    def packing_of(self, part: int) -> Packing:
        """How a part travels, and what is summed of it."""
        first, *others = self.packing.sent
        span = self.span(part)
        return Packing((Form(first.name, first.dtype, span.stop - span.start, first.wire), *([] if part else others)))

    def vectors_of(self, part: int, whole: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A part's vectors, which are views of the whole ones."""
        first, *others = self.packing.sent
        found = {first.name: whole[first.name][self.span(part)]}
        return found if part else found | {form.name: whole[form.name] for form in others}

    def whole(self, parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """The vectors of which these are all parts."""
        name = self.packing.sent[0].name
        return {**parts[0], name: torch.cat([part[name] for part in parts])}

    def split(self, said: Sequence[Said], epoch: int) -> list[list[Said]]:
        """All messages of a transfer as those of its parts."""
        (began, _), (first, _) = said[0], said[1]
        assert isinstance(began, TransferMessage)
        assert isinstance(first, TensorMessage)
        found: list[list[Said]] = []
        for part in range(self.parts):
            tensors = began.tensors if not part else 1
            named = began.micro_batches if not part else ()
            span = self.span(part)
            head = TransferMessage(
                what=began.what, step=began.step, tensors=tensors, samples=began.samples, micro_batches=named,
                epoch=epoch, part=part,
            )  # fmt: skip
            found.append([(head, ()), (_long(first, span.stop - span.start), ())])
        at, rest = 2, self.packing.sent[0].elements
        part = 0
        while rest:
            piece, tensors_of = said[at]
            assert isinstance(piece, PieceMessage)
            while piece.start >= self.bounds[part]:
                part += 1
            found[part].append((_moved(piece, -(self.span(part).start)), tensors_of))
            rest -= piece.stop - piece.start
            at += 1
        found[0] += said[at:]
        return found

    def joined(self, parts: Sequence[Sequence[Said]]) -> list[Said]:
        """The messages of the whole transfer, of which these are those of all parts."""
        began, first = parts[0][0][0], parts[0][1][0]
        assert isinstance(began, TransferMessage)
        assert isinstance(first, TensorMessage)
        own = 2
        while own < len(parts[0]) and isinstance(parts[0][own][0], PieceMessage):
            own += 1
        head = TransferMessage(
            what=began.what, step=began.step, tensors=began.tensors, samples=began.samples,
            micro_batches=began.micro_batches,
        )  # fmt: skip
        whole: list[Said] = [(head, ()), (_long(first, self.bounds[-1]), ()), *parts[0][2:own]]
        for part in range(1, self.parts):
            start = self.span(part).start
            for message, tensors in parts[part][2:]:
                assert isinstance(message, PieceMessage)
                whole.append((_moved(message, start), tensors))
        return [*whole, *parts[0][own:]]


def division_by(packing: Packing, shares: Sequence[float]) -> tuple[Division, list[int]] | None:
    """Divide by these shares, of which the first is the serving machine's: the division, and which of the others have a
    part of it. None where nobody else has any, or the vector has too few pieces."""
    form = packing.sent[0]
    size, pieces = form.piece_elements, -(-form.elements // form.piece_elements)
    if packing.low_rank is not None or pieces < 2 or not form.elements:
        return None
    total, ends, named = sum(shares), list[int](), list[int]()
    reached, end = 0.0, 0
    for at, share in enumerate(shares):
        reached += share
        until = min(pieces, max(end, round(pieces * reached / total)))
        if at == 0:
            until = min(max(1, until), pieces)
        if until > end:
            ends.append(until)
            named += [at] if at else []
            end = until
    ends[-1] = pieces
    if len(ends) < 2:
        return None
    return Division(packing, tuple(min(end * size, form.elements) for end in ends)), named


def in_part(said: Sequence[Said], epoch: int, part: int) -> list[Said]:
    """The messages of a transfer that holds just a part, under its number."""
    began = said[0][0]
    assert isinstance(began, TransferMessage)
    head = TransferMessage(
        what=began.what, step=began.step, tensors=began.tensors, samples=began.samples, epoch=epoch, part=part
    )
    return [(head, ()), *said[1:]]


def _long(message: TensorMessage, elements: int) -> TensorMessage:
    return TensorMessage(name=message.name, dtype=message.dtype, elements=elements)


def _moved(piece: PieceMessage, by: int) -> PieceMessage:
    return PieceMessage(start=piece.start + by, stop=piece.stop + by)
