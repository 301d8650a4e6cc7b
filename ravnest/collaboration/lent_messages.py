"""What a volunteer and the machines that it is lent say to each other. Nothing here is pickled.

In: fields. Out: typed messages, whose fields are bounded where they are decoded. These machines are one person's, on
links of their own: so tensors travel as they are, and only weights and gradients in pieces.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from ravnest.collaboration.messages import CodeMessage
from ravnest.errors import InvalidInput
from ring_allreduce.transport import Codec, Count, Lines, Message, Name, Text, at_most, between

LENT_PROTOCOL = 1
"""Both sides of a line have the same; others are told so, and the line ends."""

PIECE_ELEMENTS = 1 << 20
"""Weights and gradients travel in pieces of so many numbers."""

MOST_MESSAGE_BYTES = 1 << 30
MOST_HELD_BYTES = 1 << 40
"""Of one line: these machines trust each other with their memory."""

MOST_MACHINES = 64
MOST_NAME = 64
"""Characters of what a machine is called."""

TargetForm = Literal["tensor", "tuple", "dict"]
Asked = Literal["sum", "buffer", "weight"]
VectorKind = Literal[Asked, "optimizer", "gradient"]
Dropped = Literal["turns", "sums"]


class LendMessage(Message, frozen=True, kw_only=True, tag="lend"):
    """The first word of a machine: how many FLOP/s it has measured, and how much memory it has left."""

    protocol: Count
    name: Annotated[str, at_most(MOST_NAME)]
    flops_per_s: Annotated[float, between(1.0, 1e18)]
    free_bytes: Count


class StageMessage(Message, frozen=True, kw_only=True, tag="stage"):
    """The machine is to hold units [start, end) of the captured model. Its tensors are the inputs of a micro-batch."""

    job: Annotated[str, at_most(200)]
    start: Count
    end: Count
    keywords: Annotated[tuple[Name, ...], at_most(256)] | None
    """The names of the inputs, where the model takes them so."""
    target: TargetForm
    target_keys: Annotated[tuple[Name, ...], at_most(256)]
    fingerprint: Annotated[str, at_most(64)]
    seed: Annotated[int, between(0, (1 << 63) - 1)]
    total_steps: Count | None
    """Of the whole collaboration; None where it ends by time."""


class ReadyMessage(Message, frozen=True, kw_only=True, tag="ready"):
    """The stage is made, and waits for its weights."""


class ForwardMessage(Message, frozen=True, kw_only=True, tag="forward"):
    """The inputs of a stage. `turn` numbers the micro-batches that were begun; no two have the same."""

    turn: Count


class TargetMessage(Message, frozen=True, kw_only=True, tag="target"):
    """What the last stage compares the output of a micro-batch with. It comes before the inputs."""

    turn: Count


class OutputMessage(Message, frozen=True, kw_only=True, tag="output"):
    """The outputs of a stage that is not the last one."""

    turn: Count


class LossMessage(Message, frozen=True, kw_only=True, tag="loss"):
    """The loss, from the last stage. The gradients of its inputs follow, unless the loss is NaN or infinite."""

    turn: Count
    loss: float | None
    """None: it is not finite."""


class BackwardMessage(Message, frozen=True, kw_only=True, tag="backward"):
    """The gradients of a stage's outputs, to it."""

    turn: Count


class GradientMessage(Message, frozen=True, kw_only=True, tag="gradient"):
    """The gradients of a stage's inputs, from it. `finite`: whether those of its weights are finite."""

    turn: Count
    finite: bool


class CountMessage(Message, frozen=True, kw_only=True, tag="count"):
    """Add the gradient of a micro-batch of so many samples to the sum, and forget those of earlier ones."""

    turn: Count
    samples: Count


class DropMessage(Message, frozen=True, kw_only=True, tag="drop"):
    """Forget all micro-batches that are under way, or what was added up."""

    what: Dropped


class AskMessage(Message, frozen=True, kw_only=True, tag="ask"):
    """Send one vector: the sum of a parameter's gradients (which begins anew), a buffer, or a weight."""

    what: Asked
    name: Name


class VectorMessage(Message, frozen=True, kw_only=True, tag="vector"):
    """The elements from `start` on of one vector, which is flat: what was asked for, a weight, a buffer, a part of the
    optimizer's state (`key`), or the gradient of the next step."""

    what: VectorKind
    name: Name
    start: Count
    elements: Count
    key: Annotated[str, at_most(256)] = ""


class ClearMessage(Message, frozen=True, kw_only=True, tag="clear"):
    """A state follows. The optimizer has none before; `step`: how many steps were made."""

    step: Count


class StepMessage(Message, frozen=True, kw_only=True, tag="step"):
    """Make one optimizer step of the gradients that have come."""


class ThanksMessage(Message, frozen=True, kw_only=True, tag="thanks"):
    """The volunteer's program has ended, and needs this machine no longer."""


class FailedMessage(Message, frozen=True, kw_only=True, tag="failed"):
    """A machine cannot go on, or is not wanted; and why."""

    reason: Text


LENT = Codec(
    [
        LendMessage,
        CodeMessage,
        StageMessage,
        ReadyMessage,
        ForwardMessage,
        TargetMessage,
        OutputMessage,
        LossMessage,
        BackwardMessage,
        GradientMessage,
        CountMessage,
        DropMessage,
        AskMessage,
        VectorMessage,
        ClearMessage,
        StepMessage,
        ThanksMessage,
        FailedMessage,
    ]
)


def send_vector(lines: Lines, line: int, what: VectorKind, name: str, vector: Tensor, key: str = "") -> None:
    """Queue a flat vector on a line. One without elements is one message."""
    for start in range(0, max(1, vector.numel()), PIECE_ELEMENTS):
        message = VectorMessage(what=what, name=name, start=start, elements=vector.numel(), key=key)
        lines.send(line, message, (vector[start : start + PIECE_ELEMENTS],))


class Vectors:
    """The vectors that come in on one line, piece by piece: one after the other."""

    def __init__(self) -> None:
        self._whole: Tensor | None = None
        self._of: tuple[str, str, str] = ("", "", "")
        self._at = 0

    def take(self, message: VectorMessage, tensors: Sequence[Tensor]) -> Tensor | None:
        """The next piece; returns the vector once it is whole. Raises InvalidInput for a piece that was not due."""
        of = message.what, message.name, message.key
        if message.start == 0 and self._whole is None and len(tensors) == 1:
            self._of, self._at = of, 0
            self._whole = torch.empty(message.elements, dtype=tensors[0].dtype)
        whole = self._whole
        due = None if whole is None else min(PIECE_ELEMENTS, whole.numel() - self._at)
        if whole is None or of != self._of or message.start != self._at or message.elements != whole.numel():
            raise InvalidInput(f"a piece of {message.name!r} out of turn")
        if len(tensors) != 1 or tensors[0].shape != (due,) or tensors[0].dtype != whole.dtype:
            raise InvalidInput(f"a piece of {message.name!r} that has another form than was due")
        whole[self._at : self._at + len(tensors[0])] = tensors[0]
        self._at += len(tensors[0])
        if self._at < whole.numel():
            return None
        self._whole = None
        return whole


@dataclass(frozen=True)
class _Owed:
    what: Asked
    name: str
    elements: int
    dtype: torch.dtype
    number: int


class Answers:
    """What one machine was asked for and has not sent yet. It answers in the order of the questions."""

    def __init__(self) -> None:
        self._owed: deque[_Owed] = deque()
        self._vectors = Vectors()

    def ask(self, what: Asked, name: str, like: Tensor, number: int) -> None:
        """It is asked for a vector with the elements of `like`; `number`: of those that are asked together."""
        self._owed.append(_Owed(what, name, like.numel(), like.dtype, number))

    def take(self, message: VectorMessage, tensors: Sequence[Tensor]) -> tuple[int, Tensor] | None:
        """The next piece; returns the number under which the vector was asked for and the vector, once it is whole.

        Raises InvalidInput for anything that is not due: no memory is taken for it.
        """
        owed = self._owed[0] if self._owed else None
        if owed is None or (message.what, message.name, message.elements) != (owed.what, owed.name, owed.elements):
            raise InvalidInput(f"{message.elements} numbers as the {message.what} of {message.name!r} are not due")
        if any(one.dtype != owed.dtype for one in tensors):
            raise InvalidInput(f"the {message.what} of {message.name!r} is {owed.dtype}")
        vector = self._vectors.take(message, tensors)
        if vector is None:
            return None
        self._owed.popleft()
        return owed.number, vector
