"""The batches of one stage: micro-batch k of a cluster, and held-out batch b, by number.

In: a job's datasets, a sampler and a number. Out: inputs and targets as tensors. The first stage needs the inputs and
the last one the targets; both read the same seeded sampler, so targets never travel. No position is remembered: the
number determines the batch. Samples are read with the generators of torch, numpy and Python seeded by (the job's seed,
the set, the epoch, the sample's index), and collated with seeds of (the same, the batch's first index), so that a
dataset or a collate function that draws random numbers gives the same batch in every process that reads it.
"""

import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset, default_collate

from ravnest.errors import InvalidInput
from ravnest.factories import describe, user_code
from ravnest.training.draws import generators_kept, seed_generators, seed_of

_KEY = "data.factory"
_EXPECTED = (
    "each sample must be (inputs, target), or a dict with its target under `labels`, `label` or `target`, of tensors or"
    " numbers, of one shape in all samples; several inputs are a tuple (by position) or a dict (by keyword of the"
    " model's forward)"
)
_OTHER_COLUMNS = "data.inputs names those keys of a sample that the model takes; keys that are not in it are left out"
_PADDING = "; samples of several lengths need a function that pads them: data.collate_fn"

TARGET_KEYS = ("labels", "label", "target")
"""The target of a sample that is a dict, unless the job names another: the first of these that it has."""

Inputs: TypeAlias = tuple[Tensor, ...] | dict[str, Tensor]
"""A batch as the model takes it: by position, or by keyword."""

Target: TypeAlias = Tensor | tuple[Tensor, ...] | dict[str, Tensor]
"""What a loss compares the model's output with."""

Part: TypeAlias = Literal["train", "held_out"]


def arguments(inputs: Inputs) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """The inputs as arguments of a call: (by position, by keyword)."""
    return ((), inputs) if isinstance(inputs, dict) else (inputs, {})


def target_tensors(target: Target) -> tuple[Tensor, ...]:
    """The tensors of a target, in their order."""
    if isinstance(target, Tensor):
        return (target,)
    return tuple(target.values() if isinstance(target, dict) else target)


def with_tensors(target: Target, tensors: Sequence[Tensor]) -> Target:
    """A target of the same form with other tensors, in the order of `target_tensors`."""
    if isinstance(target, Tensor):
        return tensors[0]
    return dict(zip(target, tensors, strict=True)) if isinstance(target, dict) else tuple(tensors)


@dataclass(frozen=True)
class SampleKeys:
    """Which keys of samples that are dicts are inputs and which are targets.

    `targets` None: the first of TARGET_KEYS. `inputs` None: all other keys. A key that is neither is left out.
    """

    inputs: tuple[str, ...] | None = None
    targets: tuple[str, ...] | None = None

    def split(self, sample: Mapping[Any, Any], what: str) -> tuple[dict[str, Any], Any]:
        """(inputs, target) of a sample or a batch, which is called `what`. Raises InvalidInput for a key it lacks."""
        found = ", ".join(map(str, sample)) or "none"
        targets = self.targets or tuple(key for key in TARGET_KEYS if key in sample)[:1]
        if not targets:
            message = f"{what} has the keys {found}, and none of {', '.join(TARGET_KEYS)}"
            raise InvalidInput(message, key="data.targets", hint="name the keys of its target there")
        inputs = tuple(key for key in sample if key not in targets) if self.inputs is None else self.inputs
        for given, keys in (("targets", targets), ("inputs", inputs)):
            if lacking := [key for key in keys if key not in sample]:
                raise InvalidInput(f"{what} has the keys {found}, and not {lacking[0]}", key=f"data.{given}")
        chosen = {key: sample[key] for key in targets}
        return {key: sample[key] for key in inputs}, chosen if len(targets) > 1 else chosen[targets[0]]


@dataclass(frozen=True)
class SampleSet:
    """A map-style dataset of the user's, and how its samples become batches."""

    dataset: Any
    part: Part = "train"
    seed: int = 0
    collate_fn: Callable[[list[Any]], Any] | None = None
    """Makes a batch of a list of samples; None: torch's default_collate."""
    keys: SampleKeys = SampleKeys()

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def holds_tensors(self) -> bool:
        """Whether it is a plain TensorDataset, whose rows nobody's code makes: nothing in it can draw or take time."""
        return type(self.dataset) is TensorDataset and len(self.dataset.tensors) == 2 and self.collate_fn is None

    def batch(self, indices: Sequence[int], epoch: int = 0) -> tuple[Inputs, Target]:
        """The samples at `indices` as one batch: (inputs, target). It is the same in every process.

        Inputs are a tuple unless they are given by keyword. Raises InvalidInput where the user's dataset or collate
        function raises, or has something else there.
        """
        if self.holds_tensors:  # the same rows, without making a tuple for each
            with user_code("reading samples", key=_KEY):
                rows, targets = (tensor[list(indices)] for tensor in self.dataset.tensors)
            return (rows,), targets
        with generators_kept():
            samples = self._read(list(indices), epoch)
            if self.collate_fn is not None:
                return self._collated(samples, indices, epoch)
            pairs = [self._pair(sample, index) for sample, index in zip(samples, indices, strict=True)]
            for which in (0, 1):
                _require_one_form([pair[which] for pair in pairs], indices, ("inputs", "targets")[which])
            try:
                inputs, target = default_collate(pairs)
            except Exception as error:
                raise InvalidInput(
                    f"samples cannot be joined into a batch: {describe(error)}; {_EXPECTED}{_PADDING}", key=_KEY
                ) from error
        return _checked(inputs, target)

    def samples(self, indices: Sequence[int], epoch: int = 0) -> list[Any]:
        """The samples as the dataset gives them, with the seeds with which `batch` reads them."""
        with generators_kept():
            return self._read(list(indices), epoch)

    def _read(self, indices: list[int], epoch: int) -> list[Any]:
        shown = ", ".join(str(index) for index in indices[:4]) + (", …" if len(indices) > 4 else "")
        with user_code(f"reading samples {shown}", key=_KEY):
            if self.holds_tensors:
                return [self.dataset[index] for index in indices]
            if _gives_several(self.dataset):
                self._seed("read", epoch, indices[0])
                return list(self.dataset.__getitems__(indices))
            samples = []
            for index in indices:
                self._seed("read", epoch, index)
                samples.append(self.dataset[index])
            return samples

    def _collated(self, samples: list[Any], indices: Sequence[int], epoch: int) -> tuple[Inputs, Target]:
        assert self.collate_fn is not None
        self._seed("collate", epoch, indices[0])
        with user_code("the collate function", key="data.collate_fn"):
            batch = self.collate_fn(samples)
        if isinstance(batch, Mapping):
            inputs, target = self.keys.split(batch, "the batch of the collate function")
        elif isinstance(batch, tuple | list) and len(batch) == 2:
            inputs, target = batch
        else:
            message = f"the collate function returned {_form(batch)}; expected (inputs, target), or a dict of tensors"
            raise InvalidInput(message, key="data.collate_fn")
        return _checked(inputs, target)

    def _pair(self, sample: Any, index: int) -> tuple[Any, Any]:
        if isinstance(sample, Mapping):
            inputs, target = self.keys.split(sample, f"sample {index}")
            if isinstance(target, dict):
                return _listed(inputs), _listed(target)
            return _listed(inputs), _listed({"": target})[""]
        if not (isinstance(sample, tuple | list) and len(sample) == 2):
            raise InvalidInput(f"sample {index} is {_form(sample)}; {_EXPECTED}", key=_KEY)
        inputs, target = sample
        return (_listed(inputs) if isinstance(inputs, Mapping) else inputs), (
            _listed(target) if isinstance(target, Mapping) else _listed({"": target})[""]
        )

    def _seed(self, purpose: Literal["read", "collate"], epoch: int, index: int) -> None:
        seed_generators(seed_of(self.seed, purpose == "read", self.part == "train", epoch, index))


def _gives_several(dataset: Any) -> bool:
    """Whether a dataset has a way of its own to read several samples at once. A Subset, as random_split makes it, only
    passes the question on."""
    if type(dataset) is Subset:
        return _gives_several(dataset.dataset)
    return hasattr(dataset, "__getitems__")


def fetch(dataset: Any, indices: Sequence[int], epoch: int = 0) -> tuple[Inputs, Target]:
    """The samples at `indices` of a SampleSet, or of a dataset by itself, as `SampleSet.batch` gives them."""
    return (dataset if isinstance(dataset, SampleSet) else SampleSet(dataset)).batch(indices, epoch)


def _form(value: Any) -> str:
    return type(value).__name__ + (f" of {len(value)}" if isinstance(value, tuple | list) else "")


def _listed(values: Mapping[Any, Any]) -> dict[Any, Any]:
    """Lists of numbers as tensors, as rows of Hugging Face datasets have them: default_collate would transpose them."""
    return {key: _as_tensor(value) if isinstance(value, list) else value for key, value in values.items()}


def _as_tensor(value: list[Any]) -> Any:
    try:
        return torch.as_tensor(value)
    except (ValueError, TypeError, RuntimeError):
        return value  # it is refused where batches are checked, by what it is


def _checked(inputs: Any, target: Any) -> tuple[Inputs, Target]:
    """A batch in the form that Inputs and Target say. Raises InvalidInput for any other."""
    by_name = isinstance(inputs, Mapping)
    values = tuple(inputs.values()) if by_name else tuple(inputs) if isinstance(inputs, list | tuple) else (inputs,)
    targets: Any = dict(target) if isinstance(target, Mapping) else target
    if isinstance(targets, list):
        targets = tuple(targets)
    several = tuple(targets.values()) if isinstance(targets, dict) else targets
    several = several if isinstance(several, tuple) else (several,)
    if not several or not all(isinstance(value, Tensor) for value in (*values, *several)):
        named = _no_tensor(inputs, targets)
        by_key = isinstance(inputs, Mapping) or isinstance(targets, Mapping)
        raise InvalidInput(f"{named}{_EXPECTED}", key=_KEY, hint=_OTHER_COLUMNS if by_key else None)
    return ({str(key): value for key, value in inputs.items()} if by_name else values), targets


def _no_tensor(inputs: Any, targets: Any) -> str:
    """Which input or target is no tensor, and what it is; empty where there is none."""
    for kind, given in (("input", inputs), ("target", targets)):
        several = given if isinstance(given, tuple | list) else (given,)
        named = given.items() if isinstance(given, Mapping) else ((None, value) for value in several)
        for name, value in named:
            if not isinstance(value, Tensor):
                which = f"the {kind}" if name is None else f"the {kind} {name!r}"
                one = value[0] if isinstance(value, tuple | list) and value else value  # of a batch, its first sample's
                what = f"the text {reprlib.repr(one)}" if isinstance(one, str) else _form(value)
                return f"{which} is {what} and no tensor; "
    return ""


def _require_one_form(given: list[Any], indices: Sequence[int], what: str) -> None:
    """Collating takes the keys of the first sample, and would drop the other keys of later ones."""
    keys = [sorted(map(str, one)) if isinstance(one, Mapping) else None for one in given]
    for index, found in zip(indices, keys, strict=True):
        if found != keys[0]:
            first, other = (_said(keys[0], what), _said(found, what))
            raise InvalidInput(f"sample {indices[0]} has {first}, sample {index} {other}; {_EXPECTED}", key=_KEY)


def _said(keys: list[str] | None, what: str) -> str:
    return f"{what} by position" if keys is None else f"the {what} {', '.join(keys) or 'of an empty dict'}"


class Datasets(Protocol):
    """The training and the held-out set of a job."""

    @property
    def train(self) -> SampleSet: ...

    @property
    def held_out(self) -> SampleSet: ...


class MicroBatches(Protocol):
    """Which samples make up the micro-batches of a cluster: a Sampler, or that of a stream."""

    def batch(self, k: int) -> list[int]: ...

    def epoch(self, k: int) -> int: ...

    def lane(self, k: int) -> int: ...


class BatchSource:
    """Reads a job's `train` and `held_out` sets for one cluster."""

    def __init__(
        self,
        data: Datasets,
        sampler: MicroBatches,
        held_out_spans: Sequence[range],
        input_names: Sequence[str] | None = None,
    ) -> None:
        """`input_names`: the order in which a first stage takes inputs given by keyword; None: they are not wanted."""
        self._input_names = input_names
        self._train = data.train
        self._held_out = data.held_out
        self._sampler = sampler
        self._held_out_spans = held_out_spans

    @property
    def samples(self) -> tuple[int, int]:
        """The numbers of samples in the training and in the held-out set."""
        return len(self._train), len(self._held_out)

    @property
    def sets(self) -> tuple[SampleSet, SampleSet]:
        """The training and the held-out set."""
        return self._train, self._held_out

    def train(self, micro_batch: int) -> tuple[tuple[Tensor, ...], Target]:
        """(inputs, target) of the micro-batch of that number. Raises InvalidInput as SampleSet.batch does."""
        epoch = self._sampler.epoch(micro_batch)
        return self._ordered(*self._train.batch(self._sampler.batch(micro_batch), epoch))

    def held_out(self, batch: int) -> tuple[tuple[Tensor, ...], Target]:
        """(inputs, target) of the held-out batch of that number. Raises InvalidInput as SampleSet.batch does."""
        return self._ordered(*self._held_out.batch(self._held_out_spans[batch]))

    def close(self) -> None:
        """Let go of what reads the batches."""

    def _ordered(self, inputs: Inputs, target: Target) -> tuple[tuple[Tensor, ...], Target]:
        if self._input_names is None:
            return (inputs if isinstance(inputs, tuple) else ()), target
        return in_order(inputs, self._input_names), target


def in_order(inputs: Inputs, names: Sequence[str]) -> tuple[Tensor, ...]:
    """The inputs in the order in which a first stage takes them. `names`: the order of inputs given by keyword.

    Raises InvalidInput where a sample has other inputs.
    """
    if isinstance(inputs, tuple):
        return inputs
    if inputs.keys() != set(names):
        wanted, found = ", ".join(names), ", ".join(inputs)
        raise InvalidInput(f"a sample has the inputs {found}; the model was captured with {wanted}", key=_KEY)
    return tuple(inputs[name] for name in names)


def sample_batch(data: Datasets, size: int) -> tuple[Inputs, Target]:
    """The first `size` training samples, with which the model is captured and checked."""
    if len(data.train) < size:
        message = f"is {size}, but the training set has only {len(data.train)} samples: lower it or bring more"
        raise InvalidInput(message, key="micro_batch")
    with torch.no_grad():
        return fetch(data.train, range(size))
