"""The weights of a stage, in every version that a micro-batch still needs.

An update must reach the module without touching what recorded graphs hold (design §6). So the optimizer owns shell
parameters that never enter a graph. To change them, the data of each shell is first replaced by a copy, and afterwards
the module gets a new nn.Parameter around it; graphs of earlier forwards keep the old one. Without a live graph there is
nothing to protect, and nothing is copied. In-place steps and swapping `p.data` give wrong gradients for most layers, as
the tests show.

A parameter of a 16-bit type has a float32 master: its shell. The optimizer, averaging and checkpoints work on masters,
and each version is the master, rounded. The gradients of its micro-batches are added up in float32.

In: gradients of micro-batches, corrections of averaging. Out: new versions of the weights. Typical use: for each
micro-batch `parameters = weights.current()` with the forward and `weights.collect(parameters)` after its backward, then
for each update `weights.step(lr, scale, copy=there_are_live_graphs)`. The caller knows which micro-batches are in
flight.
"""

import weakref
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor, nn

from ravnest.errors import InvalidInput
from ravnest.splitting.program import is_narrow
from ravnest.training.corrections import corrected, default_correction
from ravnest.training.optimizer import OptimizerConfig, build_optimizer, partition


class VersionedModule(Protocol):
    """The part of a module's interface that VersionedWeights uses."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The parameters with their names, as torch.nn.Module returns them."""
        ...

    @property
    def set_parameter(self) -> Callable[[str, nn.Parameter], None]:
        """Replace a parameter object: the next forward uses the new one."""
        ...


class ParameterSet(dict[str, nn.Parameter]):
    """The trainable parameters that a forward used, by name. A dict that can be referred to weakly."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__  # type: ignore[assignment]


class VersionedWeights:
    """The module's trainable parameters, their optimizer, and the gradient being accumulated.

    Names are the module's own; `names` arguments take trainable ones, and vectors are float32, flat, in the
    order of the names. All methods belong to one thread.
    """

    def __init__(
        self,
        module: VersionedModule,
        config: OptimizerConfig,
        *,
        version: int = 0,
        borrowed: Collection[str] = (),
        masters: Mapping[str, Tensor] | None = None,
    ) -> None:
        """`module`: the stage. `config`: its optimizer. `version`: how many updates were made before.

        `masters`: the values of parameters before they were rounded to the module's type, where that is known.
        `borrowed`: trainable parameters that another stage owns. Their values are replaced and their gradients taken,
        and no update or merge here touches them. Raises InvalidInput when the optimizer cannot train a parameter of
        this shape.
        """
        self.version = version
        """The number of updates made so far."""
        self._module = module
        everything = dict(module.named_parameters())
        self._current = ParameterSet({name: p for name, p in everything.items() if p.requires_grad})
        self._frozen = {name: p for name, p in everything.items() if not p.requires_grad}
        self._narrow = frozenset(name for name, p in self._current.items() if is_narrow(p.dtype)) - set(borrowed)
        shells = {
            name: nn.Parameter(_master(p, (masters or {}).get(name)) if name in self._narrow else p.data)
            for name, p in self._current.items()
        }
        self._shells = {name: shell for name, shell in shells.items() if name not in borrowed}
        self._borrowed = {name: shell for name, shell in shells.items() if name in borrowed}
        self._groups = [
            _Group(group, config.lr, {name: self._shells[name] for name in names})
            for group, names in partition(config, self._shells)
        ]
        self._alive: weakref.WeakSet[ParameterSet] = weakref.WeakSet([self._current])
        self._given: set[str] = set()
        """The parameters that graphs may hold as they are now: `current()` gave them out."""

    # Gradients

    def current(self) -> ParameterSet:
        """The parameters that a forward made now uses. Keep them until its backward, then `collect` them.

        While they are held they count as a live version: drop them with the graph.
        """
        self._given.update(self._current)
        return self._current

    def collect(self, parameters: ParameterSet) -> None:
        """Add the gradients that a backward left on these parameters to the update's gradient.

        Autograd adds in place to a gradient that is already there, so from the second micro-batch on every live
        version shares the accumulator's tensors: the sums are those of a plain loop, bit for bit, and no second
        gradient is held.
        """
        changed = False
        for name, parameter in parameters.items():
            shell, gradient = self._shell(name), parameter.grad
            if gradient is None or gradient is shell.grad:
                continue
            changed = True
            if shell.grad is None:
                shell.grad = gradient.to(shell.dtype)
            else:
                shell.grad.add_(gradient)
            if name in self._narrow:
                parameter.grad = None
        if changed:
            self._lend_gradients()

    def norm_sq(self) -> float:
        """The squared L2 norm of the gradient accumulated so far."""
        gradients = [shell.grad for shell in self._shells.values() if shell.grad is not None]
        if not gradients:
            return 0.0
        norms = torch.stack(torch._foreach_norm(gradients)).double()
        return float(norms.square().sum())

    # Changes

    def step(self, lr: float, clip_scale: float | None = None, *, staleness: float = 0.0, copy: bool = True) -> None:
        """Make one update with the accumulated gradient, times `clip_scale` if given, and empty the gradient.

        `lr`: the learning rate; a parameter group with another peak rate has its own in proportion. `staleness`: of
        that gradient, in updates, the mean over its micro-batches.
        `copy` may be False only when no graph is alive that a forward recorded with the current parameters. What
        `current()` has not given out is not copied in any case: no graph holds it.
        """
        if self._groups:
            if clip_scale is not None:
                gradients = [shell.grad for shell in self._shells.values() if shell.grad is not None]
                if gradients:
                    torch._foreach_mul_(gradients, clip_scale)
            renewed = self._own(self._shells, copy=copy)
            for group in self._groups:
                group.step(lr * group.lr_ratio, staleness, self.version)
            for shell in self._shells.values():
                shell.grad = None
            self._publish(self._shells, renewed)
            self._lend_gradients()
        self.version += 1

    def add_correction(self, names: Sequence[str], correction: Tensor, *, copy: bool = True) -> None:
        """Add `correction` to the weights of `names`; `copy` as in `step`. This is no update: the version stays."""
        self._require_length(names, correction)
        with self.correcting(names, copy=copy) as add:
            add(0, correction)

    @contextmanager
    def correcting(self, names: Sequence[str], *, copy: bool = True) -> Iterator[Callable[[int, Tensor], None]]:
        """As `add_correction`, with the correction in pieces: it gives `add(at, part)`, where `at` is the place of the
        part's first element in the vector. The module has the new weights where the context ends."""
        renewed = self._own(names, copy=copy)
        shells = [self._shells[name].data for name in names]
        flat = [data.reshape(-1) for data in shells]  # views, but for what lies in another order
        ends = list(accumulate(vector.numel() for vector in flat))

        def add(at: int, part: Tensor) -> None:
            while part.numel():
                place = bisect_right(ends, at)
                here = flat[place][flat[place].numel() - (ends[place] - at) :][: part.numel()]
                here.add_(part[: here.numel()].to(here.device))
                at, part = at + here.numel(), part[here.numel() :]

        yield add
        for data, vector in zip(shells, flat, strict=True):
            if not data.is_contiguous():
                data.copy_(vector.view(data.shape))
        self._publish(names, renewed)

    def adopt(self, names: Sequence[str], values: Tensor, *, copy: bool = True) -> None:
        """Set the weights of `names` to `values`; `copy` as in `step`. The version stays."""
        parts = self._split(names, values)
        renewed = self._own(names, copy=copy)
        for name, part in zip(names, parts, strict=True):
            self._shells[name].data.copy_(part)
        self._publish(names, renewed)

    # Tied parameters

    def lend(self, names: Sequence[str]) -> tuple[Tensor, ...]:
        """Copies of this stage's own weights `names`, in the model's type, for stages that borrow them."""
        return tuple(self._shells[name].data.to("cpu", self._current[name].dtype, copy=True) for name in names)

    def add_gradients(self, gradients: Mapping[str, Tensor]) -> None:
        """Add the gradients of the borrowers' micro-batches to this stage's own gradient."""
        for name, gradient in gradients.items():
            shell = self._shells[name]
            here = gradient.to(shell.device, shell.dtype, copy=shell.grad is None)
            shell.grad = here if shell.grad is None else shell.grad.add_(here)
        self._lend_gradients()

    def replace(self, values: Mapping[str, Tensor]) -> None:
        """Set borrowed weights, without a copy. The next forward uses them; graphs in flight keep the old ones."""
        for name, value in values.items():
            self._borrowed[name].data = value.to(self._borrowed[name].device)
        self._publish(values, list(values))

    def take_gradients(self, names: Sequence[str]) -> dict[str, Tensor]:
        """Return the gradients accumulated for borrowed weights (zeros where there is none), and empty them."""
        taken = {}
        for name in names:
            shell = self._borrowed[name]
            taken[name] = (torch.zeros_like(shell) if shell.grad is None else shell.grad).cpu()
            shell.grad = None
        self._lend_gradients()
        return taken

    # Reading

    @property
    def names(self) -> tuple[str, ...]:
        """The trainable parameters that this stage owns, in the module's order."""
        return tuple(self._shells)

    def flat(self, names: Sequence[str] | None = None) -> Tensor:
        """The weights of `names` (None: all, in the module's order) as a new vector in host memory."""
        chosen = self.names if names is None else names
        vector = torch.empty(sum(self._shells[name].numel() for name in chosen))
        for part, name in zip(self._split(chosen, vector), chosen, strict=True):
            part.copy_(self._shells[name].data)  # a view: from a GPU the weights are copied once
        return vector

    def shapes(self, names: Sequence[str]) -> dict[str, torch.Size]:
        """The shapes of the weights of `names`."""
        return {name: self._shells[name].shape for name in names}

    def dtype(self, name: str) -> torch.dtype:
        """The dtype in which this stage holds a trainable parameter that it owns: of the master, where it has one."""
        return self._shells[name].dtype

    def frozen(self, name: str) -> Tensor:
        """The value of a parameter that is not trained."""
        return self._frozen[name].data

    # Memory

    @property
    def live_versions(self) -> int:
        """How many versions are held: the current one, and those that `current()` gave out and that are still kept."""
        return len(self._alive)

    @property
    def weight_bytes(self) -> int:
        """The memory of all live versions, shared tensors counted once, of masters and of the frozen parameters."""
        live = {p.data_ptr(): p.nbytes for version in self._alive for p in version.values()}
        masters = sum(self._shells[name].nbytes for name in self._narrow)
        return sum(live.values()) + masters + sum(p.nbytes for p in self._frozen.values())

    @property
    def gradient_bytes(self) -> int:
        """The memory of the accumulated gradient."""
        shells = (*self._shells.values(), *self._borrowed.values())
        return sum(shell.grad.nbytes for shell in shells if shell.grad is not None)

    @property
    def optimizer_bytes(self) -> int:
        """The memory of the optimizer's state."""
        return sum(tensor.nbytes for tensor in self._state())

    # The optimizer's state

    def optimizer_state(self) -> dict[tuple[str, str], Tensor]:
        """Copies of the optimizer's state, as (parameter name, key) → tensor. Most have none before the first step."""
        return {
            (name, key): value.to("cpu", copy=True)
            for name, shell in self._shells.items()
            for key, value in self._state_of(name, shell).items()
        }

    def state_of(self, name: str) -> dict[str, Tensor]:
        """The optimizer's state of one parameter, by the optimizer's key. It is the state itself, which each step
        changes."""
        return self._state_of(name, self._shells[name])

    def load_optimizer_state(self, state: Mapping[tuple[str, str], Tensor], *, copy: bool = True) -> None:
        """Set the state that `optimizer_state` gave; with `copy` False its tensors become the state itself, as far as
        their types fit. Raises InvalidInput for a tensor that fits no parameter here."""
        if state and not self._groups:
            raise InvalidInput("optimizer state for a stage that trains nothing")
        for (name, key), value in state.items():
            if name not in self._shells:
                raise InvalidInput(f"optimizer state {key!r} is of {name!r}, which this stage does not train")
            shape = self._shells[name].shape
            if not _fits(value.shape, shape):
                raise InvalidInput(
                    f"optimizer state {key!r} of {name!r} has shape {tuple(value.shape)}, not {tuple(shape)}"
                )
        for group in self._groups:
            mine = [place for place in state if place[0] in group.parameters]
            group.load({place: state[place].clone() if copy else state[place] for place in mine})

    def _shell(self, name: str) -> nn.Parameter:
        return self._shells[name] if name in self._shells else self._borrowed[name]

    def _state_of(self, name: str, shell: nn.Parameter) -> dict[str, Tensor]:
        optimizer = next(group.optimizer for group in self._groups if name in group.parameters)
        return {key: value for key, value in optimizer.state.get(shell, {}).items() if isinstance(value, Tensor)}

    def _state(self) -> Iterator[Tensor]:
        for name, shell in self._shells.items():
            yield from self._state_of(name, shell).values()

    def _own(self, names: Collection[str], *, copy: bool) -> list[str]:
        """Separate the data of the shells from what live graphs hold. Returns of which names the module needs a new
        parameter: of those that no graph can hold, it does not."""
        renewed = [name for name in names if name in self._given] if copy else []
        for name in renewed:
            if name not in self._narrow:  # no graph holds a master
                self._shells[name].data = self._shells[name].data.clone()
        return renewed

    def _publish(self, names: Collection[str], renewed: Sequence[str]) -> None:
        """Give the module the new data of the shells. In the place of `renewed` ones it gets new parameters; the others
        have the data already, but for what is rounded."""
        for name in self._narrow.intersection(names).difference(renewed):
            self._current[name].data.copy_(self._shells[name].data)
        if not renewed:
            return
        fresh = ParameterSet(self._current)
        for name in renewed:
            shell = self._shell(name)
            fresh[name] = nn.Parameter(shell.data.to(self._current[name].dtype))
            if name not in self._narrow:
                fresh[name].grad = shell.grad
            self._module.set_parameter(name, fresh[name])
        self._given.difference_update(renewed)
        self._current = fresh
        self._alive.add(fresh)

    def _lend_gradients(self) -> None:
        for version in self._alive:
            for name, parameter in version.items():
                if name not in self._narrow:
                    parameter.grad = self._shell(name).grad

    def _split(self, names: Sequence[str], vector: Tensor) -> list[Tensor]:
        self._require_length(names, vector)
        shapes = self.shapes(names)
        parts = torch.split(vector, [shape.numel() for shape in shapes.values()]) if shapes else ()
        return [part.reshape(shape) for part, shape in zip(parts, shapes.values(), strict=True)]

    def _require_length(self, names: Sequence[str], vector: Tensor) -> None:
        elements = sum(shape.numel() for shape in self.shapes(names).values())
        if vector.dim() != 1 or vector.numel() != elements:
            raise ValueError(f"{len(names)} parameters need {elements} elements, not {tuple(vector.shape)}")


def _master(parameter: Tensor, value: Tensor | None) -> Tensor:
    wide = parameter.data if value is None else value
    return wide.to(parameter.device, torch.float32, copy=True)


class _Group:
    """The parameters of one group, with an optimizer of their own: corrections differ by momentum and weight decay."""

    def __init__(self, config: OptimizerConfig, section_lr: float, parameters: Mapping[str, nn.Parameter]) -> None:
        """`section_lr`: the peak rate of the job's section, of which the rates of steps are parts."""
        self.parameters = parameters
        self.lr_ratio = config.lr / section_lr
        self.optimizer = build_optimizer(config, parameters.items())
        self.step = corrected(config.correction or default_correction(self.optimizer), self.optimizer)

    def load(self, state: Mapping[tuple[str, str], Tensor]) -> None:
        """Take over a state, whose tensors become the optimizer's own."""
        places = {name: place for place, name in enumerate(self.parameters)}
        by_place: dict[int, dict[str, Tensor]] = {}
        for (name, key), value in state.items():
            by_place.setdefault(places[name], {})[key] = value
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": by_place, "param_groups": groups})


def _fits(state: torch.Size, shape: torch.Size) -> bool:
    """Scalars fit, the parameter's own shape, factored moments (Adafactor's), and squares of a side (SOAP's)."""
    if len(state) == 2 and len(shape) >= 2 and state[0] == state[1] and state[0] in (shape[0], shape[1:].numel()):
        return True
    return not state or (len(state) == len(shape) and all(a in (1, b) for a, b in zip(state, shape, strict=True)))
