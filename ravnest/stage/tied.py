"""Tied parameters whose uses lie in several stages of a cluster: one stage owns each, the others borrow it.

    owner ── weights, after each change ──► … ──► last borrower          with the activations
    owner ◄─ summed gradients, once an update ─ … ── last borrower       with the gradients

In: weights and gradients of tied parameters that arrive from neighbours. Out: parcels to send to neighbours, the
weights that the stage computes with, and the staleness of each gradient.

The owner is the stage that uses the parameter first. It applies the sum of all parts of an update's gradient, so there
is one sequence of versions, one optimizer state, and one member in the rings. Weights and gradients travel from stage
to stage on the connections of activations and gradients, which keep their order. It follows that

    weights of version v leave the owner before any micro-batch that it computes with them, so a borrower has them by
    then, and no gradient is older there than at the owner;
    a borrower's part of update u leaves before the last gradient of u, so the owner has all parts when it computes its
    own last one, and nobody ever waits.

The compute thread adopts weights that have arrived before its next forward.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from ravnest.errors import RunFailed
from ravnest.splitting import StageProgram, ValueSpec
from ravnest.stage import messages as m
from ravnest.training.weights import VersionedWeights
from ring_allreduce.transport import Message


@dataclass(frozen=True)
class TiedSetup:
    """Which tied parameters one stage owns, borrows or passes on. Each list of names is sorted, and no frozen parameter
    is in one, since those never change.
    """

    borrowed: tuple[str, ...] = ()
    """The parameters that this stage uses and an earlier stage owns."""
    lent: tuple[str, ...] = ()
    """The parameters that this stage owns and a later stage uses."""
    passed_on: tuple[str, ...] = ()
    """The parameters that an earlier stage owns and a later stage uses."""
    specs: Mapping[str, ValueSpec] = field(default_factory=dict)
    """How each parameter travels, which is without compression."""

    @property
    def from_behind(self) -> tuple[str, ...]:
        """The parameters whose gradients the next stage sends."""
        return tuple(sorted((*self.lent, *self.passed_on)))

    @property
    def to_owner(self) -> tuple[str, ...]:
        """The parameters whose gradients this stage sends to the previous one."""
        return tuple(sorted({*self.borrowed, *self.passed_on}))


def tied_setups(programs: Sequence[StageProgram]) -> list[TiedSetup]:
    """The setup of each stage of a cluster. `programs`: the stages' programs, in order."""
    specs = {spec.name: spec for program in programs for spec in program.borrowed if spec.requires_grad}
    borrowers: dict[str, list[int]] = {name: [] for name in specs}
    owners: dict[str, int] = {}
    for index, program in enumerate(programs):
        for spec in program.borrowed:
            if spec.name in specs:
                borrowers[spec.name].append(index)
        owners |= {spec.name: index for spec in program.parameters if spec.name in specs}
    travelling = {name: ValueSpec(name, spec.dtype, spec.shape, needs_gradient=False) for name, spec in specs.items()}
    found = []
    for index in range(len(programs)):
        behind = {name for name, users in borrowers.items() if users[-1] > index}
        found.append(
            TiedSetup(
                borrowed=tuple(sorted(name for name, users in borrowers.items() if index in users)),
                lent=tuple(sorted(name for name in behind if owners[name] == index)),
                passed_on=tuple(sorted(name for name in behind if owners[name] < index)),
                specs=travelling,
            )
        )
    return found


@dataclass(frozen=True)
class Parcel:
    """A message to the stage that is `step` places along the pipeline."""

    step: int
    message: Message
    tensors: tuple[Tensor, ...]


class TiedParameters:
    """The tied parameters of one stage.

    The thread of the sockets calls `arrived_weights` and `arrived_gradients`, whichever thread has the stage's lock
    calls `parcels` and `staleness`, and the computing thread calls the rest.
    """

    def __init__(self, setup: TiedSetup, weights: VersionedWeights, update_every: int, max_staleness: int) -> None:
        self._setup = setup
        self._weights = weights
        self._update_every = update_every
        self._max_staleness = max_staleness
        self._lock = threading.Lock()  # of all that both threads touch, from here on
        self._newest: dict[str, Tensor] = {}
        self._newest_version = self._version = weights.version
        self._behind: dict[int, dict[str, Tensor]] = {}  # update → gradients of the stages behind
        self._parcels: list[Parcel] = []
        self._used: dict[int, int] = {}  # micro-batch → version of what is borrowed

    def begin_at(self, version: int) -> None:
        """The stage goes on after `version` updates. To be called before anything is lent or has arrived."""
        self._newest_version = self._version = version

    # Called by the thread of the sockets, and `parcels` also by the computing thread.

    def arrived_weights(self, message: m.TiedWeights, tensors: Sequence[Tensor]) -> None:
        """Keep the weights that this stage borrows, and pass on those that later stages borrow."""
        named = dict(zip(message.names, tensors, strict=True))
        onward = [name for name in message.names if name in self._setup.passed_on]
        with self._lock:
            self._newest |= {name: named[name] for name in named if name in self._setup.borrowed}
            self._newest_version = message.version
            if onward:
                passed = m.TiedWeights(version=message.version, names=tuple(onward))
                self._parcels.append(Parcel(+1, passed, tuple(named[name] for name in onward)))

    def arrived_gradients(self, message: m.TiedGradients, tensors: Sequence[Tensor]) -> None:
        """Keep the gradients of later stages until this stage's own part of the update is computed."""
        with self._lock:
            self._behind[message.update] = dict(zip(message.names, tensors, strict=True))

    def expected(self, message: m.TiedWeights | m.TiedGradients) -> list[ValueSpec]:
        """The tensors that a message must bring. Raises RunFailed where it names other parameters than it may."""
        specs = self._setup.specs
        if isinstance(message, m.TiedWeights):
            allowed = {*self._setup.borrowed, *self._setup.passed_on}
            fits = set(message.names) <= allowed
        else:
            fits = message.names == self._setup.from_behind
        if not fits:
            raise RunFailed(f"{type(message).__name__} names {', '.join(message.names)}, which is not expected here")
        return [specs[name] for name in message.names]

    @property
    def held_bytes(self) -> int:
        """The bytes of what has arrived and is not used yet."""
        with self._lock:
            held = [*self._newest.values(), *(part for parts in self._behind.values() for part in parts.values())]
        return sum(tensor.nbytes for tensor in held)

    def parcels(self) -> list[Parcel]:
        """The parcels that are to be sent now, in order. They are forgotten here."""
        with self._lock:
            parcels, self._parcels = self._parcels, []
        return parcels

    # Called by the computing thread, except `staleness`.

    def adopt(self, micro_batch: int | None = None) -> None:
        """Use the newest weights that have arrived. Called before each forward; in training with `micro_batch`."""
        if not self._setup.borrowed:
            return
        with self._lock:
            arrived, self._newest = self._newest, {}
            self._version = self._newest_version
        if arrived:
            self._weights.replace(arrived)
        if micro_batch is not None:
            with self._lock:
                self._used[micro_batch] = self._version

    def close_group(self, micro_batch: int) -> None:
        """Add up the parts of an update's gradient: the owner's sum is complete, a borrower's is ready to be sent.

        To be called after the backward of the update's last micro-batch, before the gradient is used or sent on.
        Raises RunFailed where the gradients of later stages are not here.
        """
        setup, update = self._setup, micro_batch // self._update_every
        if not (setup.from_behind or setup.to_owner):
            return
        with self._lock:
            gradients = self._behind.pop(update, {})
        if gradients.keys() != set(setup.from_behind):
            raise RunFailed(f"the gradients of tied parameters for update {update} have not come before their last one")
        for name, gradient in self._weights.take_gradients(setup.borrowed).items():
            gradients[name] = gradient + gradients[name] if name in gradients else gradient
        self._weights.add_gradients({name: gradients.pop(name) for name in setup.lent})
        if setup.to_owner:
            parts = tuple(gradients[name] for name in setup.to_owner)
            with self._lock:
                self._parcels.append(Parcel(-1, m.TiedGradients(update=update, names=setup.to_owner), parts))

    def changed(self) -> None:
        """Lend the stage's weights anew. To be called after they have changed."""
        if self._setup.lent:
            message = m.TiedWeights(version=self._weights.version, names=self._setup.lent)
            copies = self._weights.lend(self._setup.lent)
            with self._lock:
                self._parcels.append(Parcel(+1, message, copies))

    def staleness(self, update: int, own: Sequence[int]) -> tuple[int, ...]:
        """The staleness of each gradient of an update: the larger of the stage's `own` and that of what it borrows.

        Raises RunFailed where one is beyond the bound.
        """
        first = update * self._update_every
        with self._lock:
            borrowed = [update - self._used.pop(first + place, update) for place in range(len(own))]
        if max(borrowed, default=0) > self._max_staleness or min(borrowed, default=0) < 0:
            raise RunFailed(f"a tied parameter's gradient for update {update} is stale by {max(borrowed)} updates")
        return tuple(max(pair) for pair in zip(own, borrowed, strict=True))
