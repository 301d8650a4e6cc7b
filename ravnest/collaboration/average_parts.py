"""Averages that come in parts, from several machines: which are whole, and may be applied. Pure.

In: transfers of averages, whole or in parts, and the serving backbone's word that it holds all parts of one. Out: the
averages, once each is whole and that word has come. Without the word nothing is applied: a part that came from a
machine that died then is made again by others, with other bytes.
"""

from collections.abc import Mapping

from torch import Tensor

from ravnest.collaboration.messages import TransferMessage
from ravnest.collaboration.packing import Packing
from ravnest.collaboration.shares import Division
from ravnest.collaboration.transfers import Incoming
from ravnest.errors import InvalidInput

MOST_AHEAD = 8
"""An average may come so many steps before it can be applied."""

MOST_EPOCHS = 4
"""The ranges of so many epochs are remembered: parts of an average may come when the next one has begun."""


class AverageParts:
    """All averages that are on their way to one peer."""

    def __init__(self, packing: Packing) -> None:
        self._packing = packing
        self._divisions: dict[int, Division] = {}
        self._epochs: dict[int, int] = {}  # by step; 0: it is whole
        self._parts: dict[int, dict[int, dict[str, Tensor]]] = {}
        self._made: set[int] = set()

    def know(self, epoch: int, bounds: tuple[int, ...]) -> Division:
        """The ranges of an epoch. Raises InvalidInput for some that are none."""
        division = self._divisions[epoch] = Division(self._packing, bounds)
        for old in sorted(self._divisions)[:-MOST_EPOCHS]:
            if old not in self._epochs.values():
                del self._divisions[old]
        return division

    def division(self, epoch: int) -> Division:
        """Raises InvalidInput for an epoch that was not announced."""
        if epoch not in self._divisions:
            raise InvalidInput(f"the ranges of epoch {epoch} were not said")
        return self._divisions[epoch]

    def incoming(self, began: TransferMessage, due: int, part: int | None = None) -> Incoming:
        """A transfer of an average begins; the next one to be applied is of step `due`. `part`: the one that its sender
        has; None: any. Raises InvalidInput."""
        # A part may have come from elsewhere before, and so may a state that has all of it (taking.py).
        least = due - MOST_AHEAD if began.epoch else 0
        if not least <= began.step < due + MOST_AHEAD:
            raise InvalidInput(f"an average of step {began.step} at step {due}")
        if not began.epoch:
            return self._packing.incoming(began)
        division = self.division(began.epoch)
        if began.part >= division.parts or (part is not None and part != began.part):
            raise InvalidInput(f"part {began.part} of an average")
        return division.packing_of(began.part).incoming(began)

    def put(self, step: int, epoch: int, part: int, vectors: Mapping[str, Tensor]) -> None:
        """A transfer has come whole. A part by an epoch that was given up changes no average that is made."""
        if epoch and step in self._made and self._epochs.get(step, epoch) != epoch:
            return
        if self._epochs.setdefault(step, epoch) != epoch:
            self._parts.pop(step, None)
            self._epochs[step] = epoch
        if not epoch:
            self.forget(step)
            self._epochs[step] = 0
            self._made.add(step)
            vectors = self._packing.whole(vectors, 1.0)
        self._parts.setdefault(step, {})[part] = dict(vectors)

    def made(self, step: int) -> None:
        """The serving backbone holds all parts of this one."""
        self._made.add(step)

    def is_made(self, step: int) -> bool:
        """Whether the serving backbone holds all parts of this one."""
        return step in self._made

    def ready(self, step: int) -> dict[str, Tensor] | None:
        """The average of a step, once it may be applied; it is forgotten here."""
        parts, epoch = self._parts.get(step, {}), self._epochs.get(step, 0)
        whole = len(parts) == (self._divisions[epoch].parts if epoch else 1)
        if step not in self._made or not whole:
            return None
        found = parts[0] if not epoch else self._divisions[epoch].whole([parts[at] for at in range(len(parts))])
        self.forget(step)
        return found

    def lacking(self) -> list[tuple[int, int, int]]:
        """(step, epoch, part) of what has not come of averages that are made in parts."""
        return [
            (step, epoch, part)
            for step in sorted(self._made)
            if (epoch := self._epochs.get(step, 0))
            for part in range(1, self._divisions[epoch].parts)
            if part not in self._parts.get(step, {})
        ]

    def not_made(self, epoch: int) -> None:
        """The epoch is over: what has come by it of averages that are not made counts no more."""
        for step in [step for step, one in self._epochs.items() if one == epoch and step not in self._made]:
            self.forget(step)

    def forget(self, step: int) -> None:
        """What is known of the average of a step."""
        self._parts.pop(step, None)
        self._epochs.pop(step, None)
        self._made.discard(step)
