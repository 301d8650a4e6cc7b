"""Weights that a new run takes from files: a checkpoint of its own model, or of the model that it fine-tunes.

In: a job's `initial_weights`, or the weight files of a run, and the captured model. Out: every weight and buffer of the
model by name. What files do not hold is made: buffers that are never saved, and weights that the job declares new.

`match` says which stored tensor each weight starts from. It matches by name, all weights or none: whatever is missing,
left over, or of another shape or precision is an error, unless the job says that it is new or ignored. Three
differences are no error, because transformers saves so: a base model's prefix on one side, one name for weights that
are tied, and narrower floats.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from ravnest.checkpoints.own_copies import StoredCopy, digest_of
from ravnest.checkpoints.weight_files import StoredPieces, WeightFiles, open_weights
from ravnest.errors import InvalidInput
from ravnest.job.config import InitialWeightsConfig, Job
from ravnest.job.initial_weights import WeightsFromSeed
from ravnest.job.materials import make_loss, make_model, search_dirs
from ravnest.splitting import CapturedModel, Initialization
from ravnest.splitting.model_source import dropped_names, tied_names
from ravnest.splitting.program import is_narrow
from ravnest.training.loss_parameters import loss_weights

_DTYPE_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype in safetensors files: F32, BF16, I64."""
    return _DTYPE_NAMES.get(dtype, str(dtype))


class PretrainedWeights(Mapping[str, Tensor]):
    """Weights by name, in the files' precision. A tensor is read each time it is asked for, and not kept."""

    def __init__(self, files: WeightFiles, places: Mapping[str, str], made: WeightsFromSeed) -> None:
        """`made`: at least the tensors that no file holds."""
        self.files = files
        self.places = places
        """The name in the files of each weight that they hold."""
        self._from_seed = made
        self._digests: dict[str, str] = {}

    def __getitem__(self, name: str) -> Tensor:
        return self.files.read(self.places[name]) if name in self.places else self._from_seed[name]

    def in_pieces(self, name: str) -> StoredPieces | None:
        """The tensor of a weight, to be read piece by piece; None where that cannot be."""
        return self.files.in_pieces(self.places[name]) if name in self.places else None

    def __iter__(self) -> Iterator[str]:
        yield from self.places
        yield from self._made

    def __len__(self) -> int:
        return len(self.places) + len(self._made)

    @property
    def whole_because(self) -> str:
        """Why what no file holds cannot be made tensor by tensor; empty where it can, or where files hold all."""
        return self._from_seed.whole_because if self._made else ""

    def only(self, names: Collection[str]) -> tuple[Initialization, ...]:
        """How those of `names` are made that no file holds."""
        missing = [name for name in names if name not in self.places]
        return self._from_seed.only(missing) if missing else ()

    def stored(self, names: Collection[str]) -> dict[str, StoredCopy]:
        """Where those of `names` lie that files hold, with their digests. Each tensor is read once for its digest."""
        for name in names:
            if name in self.places and name not in self._digests:
                self._digests[name] = digest_of(self[name])
        return {
            name: StoredCopy(str(self.files.stored[place].file.resolve()), place, self._digests[name])
            for name in names
            if (place := self.places.get(name)) is not None
        }

    @cached_property
    def _made(self) -> tuple[str, ...]:
        """The names of the tensors that no file holds."""
        return tuple(name for name in self._from_seed if name not in self.places)


def pretrained_weights(job: Job, job_file: str | Path, captured: CapturedModel) -> PretrainedWeights | None:
    """The weights that the job's `initial_weights` names; None where it names none. Only file headers are read.

    Raises InvalidInput, at the file and the tensor's name, where it does not fit the model.
    """
    config = job.initial_weights
    if config is None:
        return None
    files = open_weights(_found(config, job_file))
    model = make_model(job, job_file, "meta")
    program = captured.span(0, len(captured.units))
    saved = (*program.parameters, *(spec for spec in program.buffers if spec.persistent))
    try:
        places = match_with_loss(
            {spec.name: Form(spec.shape, dtype_name(_held_as(spec.dtype, spec.requires_grad))) for spec in saved},
            {name: Form(tensor.shape, tensor.dtype) for name, tensor in files.stored.items()},
            {spec.name for spec in (*captured.loss_parameters, *captured.loss_buffers)},
            new=config.new,
            ignored=config.ignored,
            conventions=Conventions(tied_names(model), dropped_names(model)),
        )
    except InvalidInput as error:
        raise InvalidInput(error.message, path=str(files.path), key=error.key) from None
    return PretrainedWeights(files, places, WeightsFromSeed(job, job_file, parameters=bool(config.new)))


def saved_weights(job: Job, job_file: str | Path, files: WeightFiles) -> PretrainedWeights:
    """`files` as weights of the job's model under all their names. Only file headers are read.

    Raises InvalidInput, at the file and the tensor's name, where they are not all of this model's weights.
    """
    model = make_model(job, job_file, "meta")
    state = {name: tensor for name, tensor in model.state_dict().items() if isinstance(tensor, Tensor)}
    of_loss = loss_weights(make_loss(job, job_file))
    state |= of_loss
    buffers = {name for name, _ in model.named_buffers()}
    try:
        places = match_with_loss(
            {
                name: Form(tuple(tensor.shape), dtype_name(_held_as(tensor.dtype, name not in buffers)))
                for name, tensor in state.items()
            },
            {name: Form(tensor.shape, tensor.dtype) for name, tensor in files.stored.items()},
            of_loss.keys(),
            conventions=Conventions(tied_names(model), dropped_names(model)),
            whole=True,
        )
    except InvalidInput as error:
        raise InvalidInput(error.message, path=str(files.path), key=error.key) from None
    return PretrainedWeights(files, places, WeightsFromSeed(job, job_file, parameters=False))


def folder_of_initial_weights(job: Job, job_file: str | Path) -> Path | None:
    """The folder that the job's `initial_weights` names, or that their file lies in; None where there is none now."""
    if job.initial_weights is None:
        return None
    try:
        path = _found(job.initial_weights, job_file)
    except InvalidInput:
        return None
    return path if path.is_dir() else path.parent


def _found(config: InitialWeightsConfig, job_file: str | Path) -> Path:
    """The path of the initial weights, which is searched like factories: first from the folder of the job file, then
    from the current folder."""
    path = Path(config.path).expanduser()
    places = [folder / path for folder in search_dirs(job_file)]
    for place in places:
        if place.exists():
            return place
    tried = ", ".join(str(place) for place in places)
    raise InvalidInput(f"there is no {tried}", path=str(job_file), key="initial_weights")


WIDER: Mapping[str, tuple[str, ...]] = {"F16": ("F32", "F64"), "BF16": ("F32", "F64"), "F32": ("F64",)}
"""For each stored precision, the wider ones that hold all its numbers."""

_NAMED = 5  # the most names that an error lists


@dataclass(frozen=True)
class Form:
    """The shape and the dtype of a tensor; the dtype by its name in safetensors files: F32, BF16, I64."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Conventions:
    """What the model's library says about the names in its checkpoints."""

    same: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """For each weight, the other names under which it may be stored, best first: those that it is tied with."""
    dropped: tuple[str, ...] = ()
    """Regular expressions of names that checkpoints hold and models no longer have."""


def match_with_loss(
    wanted: Mapping[str, Form],
    stored: Mapping[str, Form],
    of_loss: Collection[str],
    *,
    new: Sequence[str] = (),
    ignored: Sequence[str] = (),
    conventions: Conventions | None = None,
    whole: bool = False,
) -> dict[str, str]:
    """As `match`, where the weights `of_loss` are those of the job's loss: they are stored under these very names, or
    not at all, so that no prefix of the model's names is taken for theirs."""
    if not of_loss:
        return match(wanted, stored, new=new, ignored=ignored, conventions=conventions, whole=whole)
    theirs = [pattern for pattern in new if any(fnmatchcase(name, pattern) for name in of_loss)]
    own = {name: form for name, form in wanted.items() if name not in of_loss}
    others = [p for p in new if p not in theirs or any(fnmatchcase(name, p) for name in own)]
    rest = {name: form for name, form in stored.items() if name not in of_loss}
    found = match(own, rest, new=others, ignored=ignored, conventions=conventions, whole=whole)
    loss = {name: wanted[name] for name in of_loss}
    held = {name: stored[name] for name in of_loss if name in stored}
    return found | match(loss, held, new=theirs, whole=whole)


def match(
    wanted: Mapping[str, Form],
    stored: Mapping[str, Form],
    *,
    new: Sequence[str] = (),
    ignored: Sequence[str] = (),
    conventions: Conventions | None = None,
    whole: bool = False,
) -> dict[str, str]:
    """The stored name of each weight, without the weights that are missing and `new`.

    new: patterns (`classifier.*`) of weights that may be missing. ignored: patterns of stored tensors to leave out.
    whole: weights and files have to fit entirely, and errors do not advise to declare anything new or ignored.
    Raises InvalidInput, at the first name concerned, for missing, surplus and ambiguous names, and for a shape or dtype
    that does not fit.
    """
    conventions = conventions or Conventions()
    wrong = next((p for p in new if not any(fnmatchcase(name, p) for name in wanted)), None)
    if wrong is not None:
        raise InvalidInput(f"no weight of the model is called {wrong!r}", key="initial_weights.new")
    stored_as = _translation(wanted, stored)
    found: dict[str, str] = {}
    missing = []
    for name in wanted:
        places = [stored_as(one) for one in (name, *conventions.same.get(name, ()))]
        place = next((place for place in places if place in stored), None)
        if place is not None:
            found[name] = place
        elif not _any(name, new):
            missing.append(name)
    if missing:
        others = "" if len(missing) == 1 else f"; so are {_some(missing[1:])}"
        advice = "" if whole else ". What is to start from the seed instead goes into initial_weights.new"
        raise InvalidInput(f"is missing{others}{advice}", key=missing[0])
    aliases = {stored_as(one) for several in conventions.same.values() for one in several}
    known = {*found.values(), *aliases, *(stored_as(name) for name in conventions.same)}
    surplus = [
        name
        for name in stored
        if name not in known and not _any(name, ignored) and not any(re.search(p, name) for p in conventions.dropped)
    ]
    if surplus:
        others = "" if len(surplus) == 1 else f"; so are {_some(surplus[1:])}"
        advice = "" if whole else ". What is not wanted goes into initial_weights.ignored"
        raise InvalidInput(f"is no weight of the model{others}{advice}", key=surplus[0])
    for name, place in found.items():
        _check(wanted[name], stored[place], place)
    return found


class _Prefix:
    """Translates a weight's name into its stored name, which lacks the prefix `lacking` or has the prefix `having`."""

    def __init__(self, lacking: str = "", having: str = "") -> None:
        self.lacking, self.having = lacking, having

    def __call__(self, name: str) -> str:
        return self.having + name.removeprefix(self.lacking)


def _translation(wanted: Collection[str], stored: Collection[str]) -> _Prefix:
    """The translation of the model's names into stored names. A prefix is accepted only where no name that it concerns
    is stored unchanged, and most are stored with the change: a single name that happens to fit proves nothing."""
    fitting = []
    for prefix in _tops(wanted):
        about = [name for name in wanted if name.startswith(prefix)]
        fitting += [_Prefix(lacking=prefix)] if _fits(_Prefix(lacking=prefix), about, stored) else []
    for prefix in _tops(stored):
        fitting += [_Prefix(having=prefix)] if _fits(_Prefix(having=prefix), list(wanted), stored) else []
    if len(fitting) > 1:
        said = " or ".join(f"without {p.lacking!r}" if p.lacking else f"with {p.having!r}" for p in fitting)
        raise InvalidInput(f"the names fit {said}: which is meant is not clear", key="initial_weights")
    return fitting[0] if fitting else _Prefix()


def _fits(prefix: _Prefix, about: Sequence[str], stored: Collection[str]) -> bool:
    found = sum(prefix(name) in stored for name in about)
    return 2 * found > len(about) and not any(name in stored for name in about)


def _tops(names: Collection[str]) -> list[str]:
    return sorted({f"{name.split('.')[0]}." for name in names if "." in name})


def _check(wanted: Form, stored: Form, place: str) -> None:
    if wanted.shape != stored.shape:
        raise InvalidInput(f"has the shape {stored.shape}; the model's is {wanted.shape}", key=place)
    if wanted.dtype != stored.dtype and wanted.dtype not in WIDER.get(stored.dtype, ()):
        raise InvalidInput(f"is {stored.dtype}; the model's {wanted.dtype} would not hold all its numbers", key=place)


def _held_as(dtype: torch.dtype, trained: bool) -> torch.dtype:
    """The type in which a run holds a weight: trained ones of a 16-bit type have float32 masters."""
    return torch.float32 if trained and is_narrow(dtype) else dtype


def _any(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
