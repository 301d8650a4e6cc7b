"""Weights that a new run takes from files: a checkpoint of its own model, or of the one it fine-tunes.

Decides where a job's `initial_weights` lies, and joins what files hold to what the model has beside it: buffers that
are never saved, and weights that the job declares new. Serves those who use a run's weights, too. Which names fit which
is training.matching's.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path

import torch
from torch import Tensor

from ravnest.checkpoints.weight_files import WeightFiles, open_weights
from ravnest.errors import InvalidInput
from ravnest.job.config import InitialWeightsConfig, Job
from ravnest.job.materials import make_buffers, make_model, make_weights, search_dirs
from ravnest.job.weight_matching import Conventions, Form, match
from ravnest.splitting import CapturedModel
from ravnest.splitting.model_source import dropped_names, tied_names

_WORDS = {
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


def word(dtype: torch.dtype) -> str:
    """In safetensors' words: F32, BF16, I64."""
    return _WORDS.get(dtype, str(dtype))


class PretrainedWeights(Mapping[str, Tensor]):
    """A start by name, in the files' precision. A tensor is read when it is asked for, and not kept."""

    def __init__(self, files: WeightFiles, places: Mapping[str, str], make: Callable[[], Mapping[str, Tensor]]) -> None:
        """`make`: gives what no file holds, among others."""
        self.files = files
        self.places = places
        """Weight → its name in the files."""
        self._make = make

    def __getitem__(self, name: str) -> Tensor:
        return self.files.read(self.places[name]) if name in self.places else self._made[name]

    def __iter__(self) -> Iterator[str]:
        yield from self.places
        yield from self._made

    def __len__(self) -> int:
        return len(self.places) + len(self._made)

    @cached_property
    def _made(self) -> dict[str, Tensor]:
        """What no file holds. New weights cost the memory of the whole model for a moment, as a start from the seed."""
        return {name: tensor for name, tensor in self._make().items() if name not in self.places}


def pretrained_weights(job: Job, job_file: str | Path, captured: CapturedModel) -> PretrainedWeights | None:
    """What the job's `initial_weights` names, checked by its headers alone; None where it names none.

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
        places = match(
            {spec.name: Form(spec.shape, word(spec.dtype)) for spec in saved},
            {name: Form(tensor.shape, tensor.dtype) for name, tensor in files.stored.items()},
            new=config.new,
            ignored=config.ignored,
            conventions=Conventions(tied_names(model), dropped_names(model)),
        )
    except InvalidInput as error:
        raise InvalidInput(error.message, path=str(files.path), key=error.key) from None
    make = make_weights if config.new else make_buffers
    return PretrainedWeights(files, places, partial(make, job, job_file))


def saved_weights(job: Job, job_file: str | Path, files: WeightFiles) -> PretrainedWeights:
    """`files` as weights of the job's model under all their names, checked by their headers alone.

    Raises InvalidInput, at the file and the tensor's name, where they are not this model's, whole.
    """
    model = make_model(job, job_file, "meta")
    state = {name: tensor for name, tensor in model.state_dict().items() if isinstance(tensor, Tensor)}
    try:
        places = match(
            {name: Form(tuple(tensor.shape), word(tensor.dtype)) for name, tensor in state.items()},
            {name: Form(tensor.shape, tensor.dtype) for name, tensor in files.stored.items()},
            conventions=Conventions(tied_names(model), dropped_names(model)),
            whole=True,
        )
    except InvalidInput as error:
        raise InvalidInput(error.message, path=str(files.path), key=error.key) from None
    return PretrainedWeights(files, places, partial(make_buffers, job, job_file))


def _found(config: InitialWeightsConfig, job_file: str | Path) -> Path:
    """Looked for as factories are: from the job file's folder, then from where one works."""
    path = Path(config.path).expanduser()
    places = [folder / path for folder in search_dirs(job_file)]
    for place in places:
        if place.exists():
            return place
    tried = ", ".join(str(place) for place in places)
    raise InvalidInput(f"there is no {tried}", path=str(job_file), key="initial_weights")
