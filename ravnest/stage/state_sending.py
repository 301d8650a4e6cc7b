"""A stage's state on its way to the driver: files of a checkpoint, as pieces of bounded size, when there is room.

In: the files' tensors as they lie in the stage, and the driver's word for how many pieces it has room. Out: pieces. No
copy of the whole state is made. What is still to be sent is read where it lies, and copied only before it changes:

- anchors and the state of outer optimizers are as of the round: what a merge would change is copied before it;
- the optimizer's state is of the moment at which it is sent, but all of one parameter is of one moment: before an
  update the rest of a parameter is copied whose state has been sent in part (decision 73);
- buffers are small, and copied when the sending begins; what is frozen never changes.

One thread calls `begin`, `wanted` and `pieces`. Whichever thread computes does so inside `changing`.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from ravnest.checkpoints.tensor_stream import PIECE_BYTES, TensorForm, head_of, in_file_order
from ravnest.stage.state_messages import StatePiece, StateSent

Change = Literal["never", "merge", "update"]
"""What changes a tensor."""


@dataclass
class StateSource:
    """A tensor of a file, and where it is read."""

    form: TensorForm
    """Its name in the file, its shape, and the dtype that it is saved in."""
    read: Callable[[], Tensor]
    """Returns the tensor as it is now."""
    changed_by: Change = "never"
    together: str = ""
    """Tensors with the same word that follow each other are of one moment."""
    kept: Tensor | None = field(default=None, init=False)
    """The tensor as it has to be sent, where it has changed meanwhile."""

    def keep(self) -> None:
        """Copy the tensor, which is going to change."""
        if self.kept is None:
            self.kept = self.read().detach().clone()

    def numbers(self, start: int, stop: int) -> Tensor:
        """Elements from `start` to `stop`, in the dtype of the file and in host memory. They may be a view."""
        tensor = self.read() if self.kept is None else self.kept
        if not tensor.is_contiguous():
            tensor = self.kept = tensor.detach().contiguous()  # once, and not for each piece
        return tensor.detach().reshape(-1)[start:stop].to("cpu", self.form.dtype)


class StateFile:
    """A file of a checkpoint: its tensors in the order of the file, and how far they have been sent."""

    def __init__(self, name: str, sources: Sequence[StateSource]) -> None:
        by_name = {source.form.name: source for source in sources}
        self.name = name
        self.left = deque(by_name[form.name] for form in in_file_order(source.form for source in sources))
        """The tensors that have not been sent entirely, in order."""
        self._element = 0
        self._together: str | None = None
        """What the tensors share that have been sent in part."""
        self._head = memoryview(head_of([source.form for source in self.left]))

    @property
    def empty(self) -> bool:
        """Whether all of it has been taken."""
        return not self._head and not self.left

    def take(self, most_bytes: int = PIECE_BYTES) -> Tensor:
        """The next bytes, at most so many, as a vector of their own. `most_bytes` is at least 8."""
        parts: list[Tensor] = []
        if self._head:
            parts.append(torch.frombuffer(bytearray(self._head[:most_bytes]), dtype=torch.uint8))
            self._head = self._head[most_bytes:]
        room = most_bytes - sum(part.numel() for part in parts)
        while self.left and not self._head:
            source = self.left[0]
            size, count = source.form.dtype.itemsize, source.form.nbytes // source.form.dtype.itemsize
            stop = min(count, self._element + room // size)
            if stop > self._element:
                parts.append(source.numbers(self._element, stop).view(torch.uint8))
                room -= parts[-1].numel()
                self._together = source.together
            self._element = stop
            if stop < count:
                break
            source.kept = None
            self.left.popleft()
            self._element = 0
        if not self.left or (not self._element and self.left[0].together != self._together):
            self._together = None
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8)

    def before(self, change: Change) -> None:
        """Copy what `change` is going to change and what has to be sent as it is now."""
        for source in self.left:
            if change == "update" and (self._together is None or source.together != self._together):
                break
            if source.changed_by == change:
                source.keep()

    @property
    def kept_bytes(self) -> int:
        """The bytes of the copies that it holds."""
        return sum(source.kept.nbytes for source in self.left if source.kept is not None)


@dataclass
class _Sending:
    """The state as of one round, on its way."""

    round: int
    files: deque[StateFile]
    pieces: int = 0
    offset: int = 0


class StateSending:
    """What one stage has still to send for checkpoints, one round after another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sending: deque[_Sending] = deque()
        self.given: list[StateFile] = []
        """Files on their way to others than the driver, which `changing` keeps as they are, too (segment_giving.py).
        They are read inside `unchanged`."""
        self._room: dict[int, int] = {}
        """By round: how many more pieces the driver has room for."""

    def begin(self, round_: int, files: Sequence[StateFile]) -> None:
        """Send these files as the state as of `round_`, after what is still to be sent of others."""
        with self._lock:
            self._sending.append(_Sending(round_, deque(files)))

    def wanted(self, round_: int, pieces: int) -> None:
        """The driver has room for so many more pieces as of `round_`, which may not have begun here yet."""
        self._room[round_] = self._room.get(round_, 0) + pieces

    def forget(self) -> None:
        """Send nothing of all this any more: whoever wanted it is gone."""
        with self._lock:
            self._sending.clear()
            self._room.clear()

    def pieces(self) -> Iterator[tuple[StatePiece | StateSent, list[Tensor]]]:
        """The messages that may be sent now, each with its tensors.

        There are none while weights change. `ready` says then that this is to be called again.
        """
        while self.ready:
            if not self._lock.acquire(blocking=False):
                return
            try:
                made = self._next(self._sending[0])
            finally:
                self._lock.release()
            yield made

    def _next(self, sending: _Sending) -> tuple[StatePiece | StateSent, list[Tensor]]:
        if not sending.files:
            self._sending.popleft()
            self._room.pop(sending.round, None)
            return StateSent(round=sending.round, pieces=sending.pieces), []
        file = sending.files[0]
        piece = file.take()
        header = StatePiece(round=sending.round, file=file.name, offset=sending.offset, last=file.empty)
        sending.pieces += 1
        sending.offset += piece.numel()
        self._room[sending.round] -= 1
        if file.empty:
            sending.files.popleft()
            sending.offset = 0
        return header, [piece]

    @property
    def ready(self) -> bool:
        """Whether something may be sent now."""
        if not self._sending:
            return False
        first = self._sending[0]
        return not first.files or self._room.get(first.round, 0) > 0

    @contextmanager
    def changing(self, change: Change) -> Iterator[None]:
        """The context of a merge or an update. What it would change and has to be sent as it is, is copied first."""
        with self._lock:
            for sending in self._sending:
                for file in sending.files:
                    file.before(change)
            for file in self.given:
                file.before(change)
            yield

    @contextmanager
    def unchanged(self) -> Iterator[bool]:
        """The context of reading: nothing changes in it. It gives False, at once, where something changes now."""
        still = self._lock.acquire(blocking=False)
        try:
            yield still
        finally:
            if still:
                self._lock.release()

    @property
    def kept_bytes(self) -> int:
        """The bytes of the copies that are held because what they are of has changed since."""
        files = [file for sending in list(self._sending) for file in list(sending.files)]
        return sum(file.kept_bytes for file in (*files, *list(self.given)))
