"""Vectors on a line: sent in pieces of which few are under way at a time, and checked as they come.

In: vectors and their forms on the wire, or pieces that arrived. Out: messages in the order in which they are to be
sent, or the vectors. A receiver knows beforehand which vectors a transfer has (names, dtypes, sizes); anything else is
an InvalidInput, and so are NaN and infinite numbers. A piece is sent when fewer than `WINDOW` are not yet taken by the
other side, so that a line's memory is bounded whatever its speed, and small messages do not wait behind a large vector.
"""

import math
from collections import deque
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ravnest.collaboration.messages import PieceMessage, TensorMessage, TransferMessage, What
from ravnest.errors import InvalidInput
from ring_allreduce.ring import Wire, decode, encode
from ring_allreduce.transport import Message

PIECE_BYTES = 256 * 1024
WINDOW = 8
"""Pieces on their way to one peer at a time: 2 MiB."""

STATE_WINDOW = 2
"""Pieces of a state that are under way to one peer."""

AVERAGES_FIRST = 0.5
"""While averages are under way, states wait for this part of a step: who joins delays nobody's step."""

Said = tuple[Message, tuple[Tensor, ...]]

MOST_NUMBER = 1e18
"""A contribution with larger numbers is refused: the sum of all of a step stays finite, and so do squares of its mean,
which optimizers keep and joiners are sent."""

DTYPES = {"float32": torch.float32, "float64": torch.float64, "int64": torch.int64, "bfloat16": torch.bfloat16}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Form:
    """One vector of a transfer, as both sides expect it."""

    name: str
    dtype: torch.dtype
    elements: int
    wire: Wire = "exact"

    @property
    def piece_elements(self) -> int:
        """The elements of each piece but the last."""
        return PIECE_BYTES // self.dtype.itemsize

    @property
    def element_bytes(self) -> int:
        """About how many bytes an element is as it travels."""
        return {"float16": 2, "bfloat16": 2, "int8": 1}.get(self.wire, self.dtype.itemsize)

    @property
    def piece_bytes(self) -> float:
        """The same of such a piece."""
        return float(self.piece_elements * self.element_bytes)


def form_in_words(forms: Sequence[Form]) -> str:
    """What is averaged, in words that two peers compare."""
    return " ".join(f"{form.name}:{form.elements}:{form.wire}" for form in forms)


def pieces(
    what: What,
    step: int,
    samples: int,
    vectors: Sequence[tuple[Form, Tensor]],
    weight: float = 1.0,
    residuals: Mapping[str, Tensor] | None = None,
    micro_batches: Sequence[tuple[int, int]] = (),
) -> Iterator[Said]:
    """The messages of one transfer, made while they are taken.

    vectors: each with its form, flat. weight: the samples behind a sum (float16 sends the mean). residuals: by name,
    what a shorter form has lost so far; it is added, and what is lost now is left there. micro_batches: those of a sum,
    as spans.
    """
    named = tuple(micro_batches)
    yield TransferMessage(what=what, step=step, tensors=len(vectors), samples=samples, micro_batches=named), ()
    for form, vector in vectors:
        yield TensorMessage(name=form.name, dtype=_NAMES[form.dtype], elements=form.elements), ()
        residual = None if residuals is None else residuals.get(form.name)
        for start in range(0, form.elements, form.piece_elements):
            stop = min(start + form.piece_elements, form.elements)
            part, left = vector[start:stop], None
            if residual is not None and form.wire != "exact":
                left = residual[start:stop]
                part = part + left
                left.zero_()
            yield PieceMessage(start=start, stop=stop), tuple(encode(form.wire, part, weight, left))


class Incoming:
    """One transfer that comes in on a line."""

    def __init__(self, began: TransferMessage, forms: Sequence[Form], *, means: bool = False) -> None:
        """forms: what it has to hold, in this order. means: a contribution travels as the mean over its samples. Raises
        InvalidInput where it says otherwise."""
        if began.tensors != len(forms):
            raise InvalidInput(f"a {began.what} has {len(forms)} vectors, not {began.tensors}")
        self.what, self.step, self.samples = began.what, began.step, began.samples
        self.micro_batches, self.epoch, self.part = began.micro_batches, began.epoch, began.part
        self.vectors: dict[str, Tensor] = {}
        self._forms = deque(forms)
        given = began.what == "contribution"
        self._weight, self._most = (1.0 if means else float(began.samples), MOST_NUMBER) if given else (1.0, math.inf)
        self._form: Form | None = None
        self._at = 0

    @property
    def whole(self) -> bool:
        """Whether all of it has come."""
        return not self._forms and self._form is None

    def take_tensor(self, message: TensorMessage) -> None:
        """The next vector begins. Raises InvalidInput unless it is the one that is due."""
        if self._form is not None or not self._forms:
            raise InvalidInput(f"a vector {message.name!r} out of turn")
        form = self._forms.popleft()
        if (message.name, message.dtype, message.elements) != (form.name, _NAMES[form.dtype], form.elements):
            raise InvalidInput(
                f"{message.elements} {message.dtype} named {message.name!r} where {form.elements} {form.dtype} named"
                f" {form.name!r} were due"
            )
        self.vectors[form.name] = torch.empty(form.elements, dtype=form.dtype)
        self._form, self._at = (form, 0) if form.elements else (None, 0)

    def take_piece(self, message: PieceMessage, tensors: Sequence[Tensor]) -> None:
        """The next elements. Raises InvalidInput for others than those that are due, or numbers that are not finite."""
        form = self._form
        if form is None:
            raise InvalidInput("a piece of no vector")
        stop = min(self._at + form.piece_elements, form.elements)
        if (message.start, message.stop) != (self._at, stop):
            raise InvalidInput(f"elements {message.start} to {message.stop} where {self._at} to {stop} were due")
        if form.dtype.is_floating_point:
            vector = decode(form.wire, tensors, stop - self._at, self._weight, form.dtype, self._most)
        elif len(tensors) == 1 and tensors[0].dtype == form.dtype and tensors[0].shape == (stop - self._at,):
            vector = tensors[0]
        else:
            raise InvalidInput(f"a piece of {form.name!r} has another form than {form.dtype}")
        self.vectors[form.name][self._at : stop] = vector
        self._at = stop
        if stop == form.elements:
            self._form = None


@dataclass(frozen=True)
class _Waiting:
    """One transfer. `visit`: on whose behalf it is handed on. `state`: it is one."""

    transfer: Iterator[Said]
    visit: int | None
    state: bool


class Outgoing:
    """The transfers that wait for one line, in their order, and how much of them is under way."""

    def __init__(self) -> None:
        self._transfers: deque[_Waiting] = deque()
        self._sent = 0
        self._got = 0
        self._emptied: int | None = None  # so many pieces were sent when nothing waited first
        self._under_way: deque[int] = deque()  # the bytes of each piece
        self.taken_bytes = 0
        """Of the pieces that the other side has taken."""

    def __len__(self) -> int:
        return len(self._transfers)

    @property
    def taken(self) -> int:
        """The pieces that the other side has taken."""
        return self._got

    @property
    def settled(self) -> bool:
        """Whether the other side has taken all."""
        return not self._transfers and self._got == self._sent

    @property
    def had_all(self) -> bool:
        """Whether the other side had taken all at some moment since put_state() or count_anew()."""
        return self.settled or (self._emptied is not None and self._got >= self._emptied)

    @property
    def has_state(self) -> bool:
        """Whether some of a state is still to be sent."""
        return any(one.state for one in self._transfers)

    def put(self, transfer: Iterator[Said], *, visit: int | None = None) -> None:
        """Send this after those that wait. `visit`: on whose behalf it is handed on; None: it is no volunteer's."""
        self._transfers.append(_Waiting(transfer, visit, state=False))

    def put_state(self, transfer: Iterator[Said]) -> None:
        """Send a state, which has all averages that wait: these are not sent."""
        self._transfers = deque([_Waiting(transfer, None, state=True)])
        self.count_anew()

    def count_anew(self) -> None:
        """What was taken before says nothing of had_all."""
        self._emptied = None

    def cancel(self, transfer: object) -> None:
        """Send no more of this one, which may have begun: what follows begins a transfer of its own."""
        self._transfers = deque(one for one in self._transfers if one.transfer is not transfer)

    def cancel_of(self, visits: Container[int | None]) -> None:
        """The same for all that is handed on for these visits."""
        self._transfers = deque(one for one in self._transfers if one.visit not in visits)

    def got(self, taken: int) -> None:
        """The other side has taken so many pieces in all. Raises InvalidInput for more than were sent."""
        if not self._got <= taken <= self._sent:
            raise InvalidInput(f"{taken} pieces were taken of {self._sent} that were sent")
        self.taken_bytes += sum(self._under_way.popleft() for _ in range(taken - self._got))
        self._got = taken

    def due(self, window: int = WINDOW) -> Iterator[Said]:
        """The messages that may be sent now, while fewer than `window` pieces are under way."""
        while self._transfers and self._sent - self._got < window:
            said = next(self._transfers[0].transfer, None)
            if said is None:
                self._transfers.popleft()
                if not self._transfers and self._emptied is None:
                    self._emptied = self._sent
                continue
            if isinstance(said[0], PieceMessage):
                self._sent += 1
                self._under_way.append(sum(one.nbytes for one in said[1]))
            yield said
