"""How a model's weights get their first values, as plain data that any process can carry out.

In: the steps that `recording` has noted while the model was built without memory, and a seed. Out: the values of
single tensors. A tensor is made by the steps that its value depends on, and by no others, so that a stage makes its own
weights and nothing else.

What a step draws depends on the seed and on a name alone: each random step has a generator of its own, seeded by
(seed, name, number), where the name is that of the weight which the step fills. So the values are the same, bit for
bit, whoever makes them and whatever else is made. A constructor that seeds a generator by itself gets that generator's
numbers, in the order in which it draws them.

A storage is a block of memory, and every tensor is described as a view of one: so a step that writes to a view is a
step that writes to all other views of its storage.
"""

import hashlib
import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ravnest.errors import InvalidInput
from ravnest.splitting.program import resolve_target

_FILLING = frozenset({"aten.normal_", "aten.uniform_", "aten.zero_", "aten.fill_", "aten.copy_", "aten.bernoulli_"})
"""Operators that give every element of their first argument a value, whatever it held."""


@dataclass(frozen=True)
class StorageView:
    """A tensor as a view of a storage. Sizes, strides and the offset count elements of `dtype`."""

    storage: int
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class NamedDraw:
    """The numbers of a generator that is seeded with (seed, name, number)."""

    name: str
    number: int


@dataclass(frozen=True)
class SeededDraw:
    """The next numbers of a generator that the constructor has seeded itself. `generator` counts such seedings."""

    generator: int


@dataclass(frozen=True)
class InitialStep:
    """One call of an operator. `args` and `kwargs` have a StorageView for every tensor."""

    target: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    made: tuple[tuple[int, StorageView], ...]
    """The tensors with a storage of their own that it returns, by their position among all that it returns."""
    draw: NamedDraw | SeededDraw | None = None

    @cached_property
    def read(self) -> tuple[int, ...]:
        """The storages of all its arguments."""
        return tuple(dict.fromkeys(view.storage for view in views((self.args, self.kwargs))))


@dataclass(frozen=True)
class Initialization:
    """The first values of a model's weights, or of some of them. It holds no weights, and can be pickled."""

    steps: tuple[InitialStep, ...]
    results: Mapping[str, StorageView]
    """Every weight and buffer that can be made, by its name in the model."""
    constants: Mapping[int, Tensor]
    """The contents of storages that no step makes: small tables that the constructor brought along, as bytes."""
    generators: Mapping[int, Tensor]
    """The states in which generators were when the constructor began to draw from them."""
    parameters: frozenset[str] = frozenset()
    """Which of the results are parameters."""

    def only(self, names: Collection[str]) -> "Initialization":
        """What the weights of these names need. Raises InvalidInput where there is no such weight."""
        for name in names:
            if name not in self.results:
                raise InvalidInput(f"the model's constructor makes no {name!r}", key=name)
        results = {name: view for name, view in self.results.items() if name in names}
        kept = self._needed({view.storage for view in results.values()})
        steps = tuple(self.steps[index] for index in kept)
        used = {view.storage for view in results.values()} | {storage for step in steps for storage in step.read}
        drawn = {step.draw.generator for step in steps if isinstance(step.draw, SeededDraw)}
        return Initialization(
            steps,
            results,
            {storage: tensor for storage, tensor in self.constants.items() if storage in used},
            {number: state for number, state in self.generators.items() if number in drawn},
            self.parameters & results.keys(),
        )

    def steps_of(self, name: str) -> list[int]:
        """The numbers of the steps that decide the value of one weight, in order."""
        return self._needed({self.results[name].storage})

    def _needed(self, storages: Collection[int]) -> list[int]:
        """The steps that decide what these storages hold at the end, in order."""
        kept: set[int] = set()
        seen: set[tuple[int, int]] = set()
        waiting = [(storage, len(self.steps)) for storage in storages]
        while waiting:
            storage, end = waiting.pop()
            writers = self._writers.get(storage, [])
            place = bisect_left(writers, end)
            if not place:
                continue  # a constant that nothing has changed before
            index = writers[place - 1]
            if (storage, index) in seen:
                continue
            seen.add((storage, index))
            kept.add(index)
            step = self.steps[index]
            waiting += [(other, index) for other in step.read if other != storage]
            if isinstance(step.draw, SeededDraw):
                waiting.append((_generator(step.draw), index))
            # What a whole storage held before it was filled matters to nobody, but it has to be there.
            waiting.append((storage, writers[0] + 1 if self._fills(step, storage) else index))
        return sorted(kept)

    def _fills(self, step: InitialStep, storage: int) -> bool:
        """Whether a step gives every element of a storage a value that does not depend on what it held."""
        if _without_overload(step.target) not in _FILLING:
            return False
        of_storage = [view for view in views((step.args, step.kwargs)) if view.storage == storage]
        whole = [view for view in of_storage if _size_bytes(view) == self._sizes.get(storage)]
        return len(of_storage) == len(whole) == 1 and whole[0] is step.args[0]

    @cached_property
    def _sizes(self) -> dict[int, int]:
        """The bytes of each storage that a step makes."""
        return {view.storage: _size_bytes(view) for step in self.steps for _, view in step.made}

    @cached_property
    def _writers(self) -> dict[int, list[int]]:
        """By storage, the steps that make it or write to it, in order. A seeded generator counts as a storage, which
        every draw writes to."""
        found: dict[int, list[int]] = {}
        for index, step in enumerate(self.steps):
            for storage in written_storages(step):
                found.setdefault(storage, []).append(index)
            if isinstance(step.draw, SeededDraw):
                found.setdefault(_generator(step.draw), []).append(index)
        return found

    @cached_property
    def _filled_at_once(self) -> set[int]:
        """The storages that are filled whole by the first step that touches them after they were made."""
        untouched: set[int] = set()
        filled: set[int] = set()
        for step in self.steps:
            filled |= {storage for storage in untouched.intersection(step.read) if self._fills(step, storage)}
            untouched.difference_update(step.read)
            untouched |= {view.storage for _, view in step.made}
        return filled

    def make(self, seed: int, step_done: Callable[[], None] = lambda: None) -> dict[str, Tensor]:
        """The values of all `results`. Tensors that share memory in the model share it here.

        `step_done` is called after each step: large weights take a while. It leaves torch's generators as they are.
        Raises InvalidInput where this machine lacks an operator, or makes tensors of another form than those that were
        recorded.
        """
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # with several, a kernel's last bits may depend on where it divides a tensor
        try:
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                return self._made(seed, step_done)
        finally:
            torch.set_num_threads(threads)

    def _made(self, seed: int, step_done: Callable[[], None]) -> dict[str, Tensor]:
        last = {storage: index for index, step in enumerate(self.steps) for storage in touched_storages(step)}
        kept = {view.storage for view in self.results.values()}
        dying: dict[int, list[int]] = {}
        for storage, index in last.items():
            if storage not in kept:
                dying.setdefault(index, []).append(storage)
        storages: dict[int, torch.UntypedStorage] = {
            storage: tensor.clone().untyped_storage() for storage, tensor in self.constants.items()
        }
        states = dict(self.generators)
        for index, step in enumerate(self.steps):
            self._carry_out(step, storages, states, seed)
            for storage in dying.get(index, ()):
                del storages[storage]
            step_done()
        return {name: _tensor(view, storages) for name, view in self.results.items()}

    def _carry_out(
        self, step: InitialStep, storages: dict[int, torch.UntypedStorage], states: dict[int, Tensor], seed: int
    ) -> None:
        generator = torch.default_generator
        match step.draw:
            case NamedDraw():
                generator.manual_seed(seed_of(seed, step.draw))
            case SeededDraw(number):
                generator.set_state(states[number])
        args = mapped(step.args, lambda view: _tensor(view, storages))
        kwargs = {key: mapped(value, lambda view: _tensor(view, storages)) for key, value in step.kwargs}
        returned = resolve_target(step.target)(*args, **kwargs)
        if isinstance(step.draw, SeededDraw):
            states[step.draw.generator] = generator.get_state()
        tensors = [leaf for leaf in torch.utils._pytree.tree_leaves(returned) if isinstance(leaf, Tensor)]
        for position, view in step.made:
            tensor = tensors[position]
            found = (tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset())
            if found != (view.dtype, view.size, view.stride, view.offset):
                raise InvalidInput(
                    f"{step.target} gave a tensor {found} here, and {view} where the model was recorded: use the same"
                    " version of torch on all machines"
                )
            if _leaves_undefined(step.target) and view.storage not in self._filled_at_once:
                tensor.zero_()  # so that what nobody fills is the same everywhere
            storages[view.storage] = tensor.untyped_storage()


def seed_of(seed: int, draw: NamedDraw) -> int:
    """The seed of one draw, a number of 64 bits. It is the same on every machine."""
    text = f"{seed}:{draw.number}:{draw.name}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def views(structure: Any) -> Iterator[StorageView]:
    """The views of storages in an argument or a tuple of arguments, in order."""
    if isinstance(structure, StorageView):
        yield structure
    elif isinstance(structure, tuple):
        for element in structure:
            yield from views(element)


def mapped(structure: Any, function: Callable[[StorageView], Tensor]) -> Any:
    """The argument with `function` of each view in its place. Inner tuples become lists, as operators take them."""
    if isinstance(structure, StorageView):
        return function(structure)
    if isinstance(structure, tuple):
        return [mapped(element, function) for element in structure]
    return structure


def written_storages(step: InitialStep) -> set[int]:
    """The storages that a step makes or changes."""
    written = {view.storage for _, view in step.made}
    function = resolve_target(step.target)
    keywords = dict(step.kwargs)
    for position, declared in enumerate(function._schema.arguments):  # type: ignore[attr-defined]
        if declared.alias_info is not None and declared.alias_info.is_write:
            given = step.args[position] if position < len(step.args) else keywords.get(declared.name)
            written |= {view.storage for view in views((given,))}
    return written


def touched_storages(step: InitialStep) -> set[int]:
    """The storages that a step makes, reads or changes."""
    return {*step.read, *(view.storage for _, view in step.made)}


def _generator(draw: SeededDraw) -> int:
    """The number of a seeded generator among storages, which are counted from 0."""
    return -1 - draw.generator


def _without_overload(target: str) -> str:
    return target.rpartition(".")[0]


def _size_bytes(view: StorageView) -> int:
    return math.prod(view.size) * view.dtype.itemsize


def _tensor(view: StorageView, storages: Mapping[int, torch.UntypedStorage]) -> Tensor:
    empty = torch.empty(0, dtype=view.dtype)
    return empty.set_(storages[view.storage], view.offset, view.size, view.stride)


def _leaves_undefined(target: str) -> bool:
    return target.split(".")[1].removeprefix("new_").startswith("empty")
