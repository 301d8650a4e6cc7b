"""Records how a model's constructor makes its weights, without making them.

In: a function that builds the model. Out: an Initialization, which makes any of its weights from a seed, alone.

The constructor runs on fake tensors, which have shapes and no memory, and a dispatch mode notes each operator that it
calls. A constructor that reads a value (`.item()`, `if tensor.any()`) is given the true one: what that value depends on
is made at once and dropped. What comes from elsewhere (weights that the constructor loads from a file) has no steps to
make it, and is refused by name.
"""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from ravnest.errors import InvalidInput
from ravnest.formatting import size
from ravnest.splitting.exporting import quiet
from ravnest.splitting.initialization import (
    Initialization,
    InitialStep,
    NamedDraw,
    SeededDraw,
    StorageView,
    written_storages,
)
from ravnest.splitting.model_source import pretrained_sources, weights_of

MOST_CONSTANT_BYTES = 16 << 20
"""The most that the constants of a model may take together: they are sent to the stages with the steps. Larger ones are
weights that the constructor loads."""
_START = 0x7261766E657374
"""The state of torch's generator by which it is known that the constructor has not seeded it: one that nobody uses."""


def record(build: Callable[[], nn.Module], seed: int) -> Initialization:
    """How `build` makes every weight, buffer and tensor attribute of its model (see `weights_of`).

    seed: for draws whose values the constructor reads while it runs.
    Raises InvalidInput, in the words of whoever raised it, where the model cannot be built or recorded so.
    """
    recorder = _Recorder(seed)
    try:
        with torch.random.fork_rng(devices=[]), _copyable_fakes(), quiet():
            torch.default_generator.manual_seed(_START)
            with recorder.fake, recorder:
                model = build()
                if sources := pretrained_sources(model):
                    recorder.refuse(f"its constructor loads weights ({sources[0]})")
                results = {name: recorder.view(tensor) for name, tensor in weights_of(model).items()}
    except Exception as error:
        if not recorder.refused:
            raise
        raise InvalidInput(recorder.refused) from error
    if recorder.refused:  # the constructor has caught it, and done something else
        raise InvalidInput(recorder.refused)
    return recorder.recorded(results, frozenset(name for name, _ in model.named_parameters()))


_UNNAMED = NamedDraw("", -1)
"""The draw of a step before it is known which weight it serves."""


def _state(generator: torch.Generator, seed: int | None = None) -> bytes:
    """A generator's state, or that of another which is seeded with `seed`."""
    with _disable_current_modes():
        if seed is not None:
            generator = torch.Generator().manual_seed(seed)
        return generator.get_state().numpy().tobytes()


@contextmanager
def _copyable_fakes() -> Iterator[None]:
    """Lets fake tensors be copied by copy.deepcopy and converted by nn.Module.to, as constructors do.

    torch copies the whole fake mode with each tensor, and swaps tensors that it holds weak references to.
    """

    def deepcopy(self: FakeTensor, memo: dict[int, Any]) -> Tensor:
        if id(self) not in memo:
            copied = self.detach().clone()
            if isinstance(self, nn.Parameter):
                copied = nn.Parameter(copied, self.requires_grad)
            elif self.requires_grad:
                copied.requires_grad_()
            memo[id(self)] = copied
        return memo[id(self)]  # type: ignore[no-any-return]

    def swap(one: Tensor, other: Tensor) -> None:
        if isinstance(one, FakeTensor):
            one.data = other.data  # the other is dropped
        else:
            original(one, other)  # type: ignore[no-untyped-call]

    original = torch.utils.swap_tensors
    FakeTensor.__deepcopy__ = deepcopy  # type: ignore[assignment, method-assign]
    torch.utils.swap_tensors = swap
    try:
        yield
    finally:
        torch.utils.swap_tensors = original
        del FakeTensor.__deepcopy__


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every operator that makes or changes tensors. It is entered after its `fake` mode."""

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.refused = ""
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self._seed = seed
        self._steps: list[InitialStep] = []
        # A storage's address → its number. The storages are held, so that no address is used twice.
        self._numbers: dict[int, int] = {}
        self._held: list[torch.UntypedStorage] = []
        self._constants: dict[int, Tensor] = {}
        self._constant_bytes = 0
        self._generators: dict[int, Tensor] = {}
        self._running: dict[torch.Generator, tuple[bytes, int]] = {}  # the state after the last draw, its number
        self._reads = itertools.count()
        self._unseeded = _state(torch.default_generator, _START)

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        given = torch.utils._pytree.tree_map_only(Tensor, self._faked, (tuple(args), kwargs or {}))
        generators = [leaf for leaf in torch.utils._pytree.tree_leaves(given) if isinstance(leaf, torch.Generator)]
        given = torch.utils._pytree.tree_map_only(torch.Generator, lambda _: None, given)
        if func is torch.ops.aten._local_scalar_dense.default:
            value = self._value(given[0][0])
            with _disable_current_modes():
                return value.item()
        if func is torch.ops.aten.lift_fresh.default:
            return given[0][0]  # made of numbers in Python: by now a constant
        described = self._described(given)
        try:
            returned = func(*given[0], **given[1])
        except (DataDependentOutputException, DynamicOutputShapeException):
            return self._computed(func, given)
        self._note(func, described, returned, next(iter(generators), None))
        return returned

    def view(self, tensor: Tensor) -> StorageView:
        """A tensor as a view of a storage. Raises InvalidInput where no step makes the storage."""
        tensor = self._faked(tensor)
        if tensor.device.type != "cpu":
            self.refuse(f"it uses a tensor on the device {tensor.device}, or one that it reads from a file")
        if tensor.layout != torch.strided or tensor.is_conj() or tensor.is_neg():
            self.refuse(f"it makes a tensor of another layout ({tensor.layout})")
        number = self._numbers.get(tensor.untyped_storage()._cdata)
        if number is None:
            self.refuse("it uses a tensor that no operator of torch has made (one read from a file?)")
        return StorageView(number, tensor.dtype, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))

    def refuse(self, why: str) -> NoReturn:
        """Notes and raises that the constructor did what cannot be repeated from its operators alone."""
        self.refused = self.refused or why
        raise InvalidInput(why)

    def recorded(self, results: dict[str, StorageView], parameters: frozenset[str]) -> Initialization:
        """What has been noted, with a name for each draw."""
        made = Initialization(tuple(self._steps), results, self._constants, self._generators, parameters)
        owners: dict[int, str] = {}
        by_storage = {view.storage: name for name, view in reversed(results.items())}
        for index, step in enumerate(self._steps):  # first those that fill a weight itself
            filled = sorted(written_storages(step) & by_storage.keys())
            if filled:
                owners[index] = by_storage[filled[0]]
        for name in results:  # then those whose numbers only help to make it
            for index in made.steps_of(name):
                owners.setdefault(index, name)
        counts: dict[str, itertools.count[int]] = {}
        steps = list(self._steps)
        for index, step in enumerate(steps):
            if step.draw == _UNNAMED and index in owners:
                name = owners[index]
                number = next(counts.setdefault(name, itertools.count()))
                steps[index] = replace(step, draw=NamedDraw(name, number))
        return replace(made, steps=tuple(steps)).only(results)

    def _faked(self, tensor: Tensor) -> Tensor:
        """The tensor without memory that stands for a real one, whose content becomes a constant."""
        if isinstance(tensor, FakeTensor):
            return tensor
        if tensor.device.type != "cpu":
            self.refuse(f"it uses a tensor on the device {tensor.device}")
        fake = self.fake.from_tensor(tensor)
        storage = fake.untyped_storage()
        if storage._cdata not in self._numbers:
            self._constant_bytes += tensor.untyped_storage().nbytes()
            if self._constant_bytes > MOST_CONSTANT_BYTES:
                self.refuse(
                    f"it brings more than {size(MOST_CONSTANT_BYTES)} of numbers along (weights read from a file?)"
                )
            with _disable_current_modes():
                content = torch.empty(0, dtype=torch.uint8).set_(tensor.detach().untyped_storage()).clone()
            self._constants[self._numbered(storage)] = content
        return fake

    def _numbered(self, storage: torch.UntypedStorage) -> int:
        if storage._cdata not in self._numbers:
            self._numbers[storage._cdata] = len(self._held)
            self._held.append(storage)
        return self._numbers[storage._cdata]

    def _described(self, argument: Any) -> Any:
        """An argument as plain data: tuples for lists, views for tensors."""
        match argument:
            case Tensor():
                return self.view(argument)
            case list() | tuple():
                return tuple(self._described(element) for element in argument)
            case dict():
                return tuple((key, self._described(value)) for key, value in argument.items())
            case torch.SymInt() | torch.SymFloat() | torch.SymBool():
                self.refuse("a size in it depends on values")
            case torch.UntypedStorage() | torch.TypedStorage():
                self.refuse("it gives tensors memory of its own (read from a file?)")
        return argument

    def _note(self, func: Any, described: Any, returned: Any, generator: torch.Generator | None) -> None:
        made = []
        leaves = [leaf for leaf in torch.utils._pytree.tree_leaves(returned) if isinstance(leaf, Tensor)]
        for position, leaf in enumerate(leaves):
            storage = leaf.untyped_storage()
            if storage._cdata not in self._numbers:
                self._numbered(storage)
                made.append((position, self.view(leaf)))
        draws = torch.Tag.nondeterministic_seeded in func.tags
        step = InitialStep(str(func), described[0], described[1], tuple(made), self._draw(generator) if draws else None)
        if made or written_storages(step):
            self._steps.append(step)

    def _draw(self, generator: torch.Generator | None) -> NamedDraw | SeededDraw:
        """Which numbers a random step gets: those of its name, or those of a generator that the constructor seeded."""
        own = torch.default_generator if generator is None else generator
        state = _state(own)
        if generator is None and state == self._unseeded:
            return _UNNAMED
        last, number = self._running.get(own, (b"", -1))
        if state != last:  # seeded since its last draw
            number = len(self._generators)
            with _disable_current_modes():
                self._generators[number] = own.get_state()
        with _disable_current_modes():
            torch.rand(1, generator=own)  # so that seeding it alike again shows
        self._running[own] = _state(own), number
        return SeededDraw(number)

    def _value(self, tensor: Tensor) -> Tensor:
        """The true value of a tensor as it is now. The draws that it depends on are fixed by it."""
        view = self.view(tensor)
        sofar = Initialization(tuple(self._steps), {"": view}, self._constants, self._generators)
        for index in sofar.steps_of(""):
            if self._steps[index].draw == _UNNAMED:
                self._steps[index] = replace(self._steps[index], draw=NamedDraw("", next(self._reads)))
        with _disable_current_modes():
            return replace(sofar, steps=tuple(self._steps)).only([""]).make(self._seed)[""]

    def _computed(self, func: Any, given: Any) -> Any:
        """What an operator returns whose result has a form that depends on values."""
        real = torch.utils._pytree.tree_map_only(Tensor, self._value, given)
        with _disable_current_modes():
            returned = func(*real[0], **real[1])
        return torch.utils._pytree.tree_map_only(Tensor, self._faked, returned)
