"""A run's weights for other programs: safetensors under the model's own names, or a folder that transformers reads.

In: a trained run, its files of weights, and an `ExportTarget`. Out: files, in as many parts as their size demands. One
tensor at a time is in memory. Nothing is overwritten unless the caller says so, and nothing is pickled.

A folder for transformers is written beside its place, in a hidden folder. Then its files are moved, config.json last,
and one of before is removed first. Without it transformers takes no folder, so a half one is never taken for a whole.
"""

import math
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from ravnest.checkpoints.checkpoint import told
from ravnest.checkpoints.durable_files import DurableFiles
from ravnest.checkpoints.sharded_weights import PART_BYTES, ShardedWeights
from ravnest.checkpoints.tensor_stream import TensorForm
from ravnest.checkpoints.weight_files import WeightFiles
from ravnest.errors import InvalidInput
from ravnest.job.materials import make_loss, make_model
from ravnest.job.pretrained import folder_of_initial_weights, saved_weights
from ravnest.results.tensorboard import to_tensorboard
from ravnest.results.trained_run import TrainedRun, open_run, open_weights_of_run
from ravnest.splitting.model_source import aliases, huggingface_config, huggingface_generation
from ravnest.training.loss_parameters import loss_weights
from ravnest.training.precision import Precision

_DTYPES: Mapping[Precision, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


CONFIG = "config.json"
GENERATION = "generation_config.json"
UNFINISHED = ".export.new"
"""The folder, in that of an export for transformers, in which it is written until it is whole."""
TOKENIZER = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.model"),
    *("vocab.json", "vocab.txt", "merges.txt", "spiece.model", "sentencepiece.bpe.model", "sentencepiece.model"),
    *("spm.model", "spm_char.model", "source.spm", "target.spm", "vocab-src.json", "vocab-tgt.json", "bpe.codes"),
    *("normalizer.json", "chat_template.jinja", "chat_template.json", "preprocessor_config.json"),
    *("processor_config.json", "entity_vocab.json", "word_shape.json", "word_pronunciation.json"),
    *("target_vocab.json", "emoji.json", "dict.txt", "byte_maps.json"),
)
"""What a Hugging Face folder has besides config.json and weights: from_pretrained of its tokenizer reads it. These are
the names in transformers' own tokenizers and processors."""


@dataclass(frozen=True)
class ExportTarget:
    """The place where weights are written: files in `folder` whose names begin with `stem`.

    `key` is the option of the command that names the folder, for errors. With `force`, files of an earlier export are
    replaced.
    """

    folder: Path
    stem: str
    key: str
    force: bool = False
    part_bytes: int = PART_BYTES
    disk: DurableFiles = field(default_factory=DurableFiles)
    """The operations on files, for tests."""

    def prepare(self) -> None:
        """Make the folder. Raises InvalidInput where nothing can be written there, or where it has weights already and
        `force` is not set."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = error.strerror or str(error)
            raise InvalidInput(f"cannot be made ({reason})", path=str(self.folder), key=self.key) from None
        try:
            tempfile.TemporaryFile(dir=self.folder).close()  # permissions alone do not tell: those of /proc allow it
        except OSError as error:
            reason = error.strerror or str(error)
            raise InvalidInput(f"cannot be written to ({reason})", path=str(self.folder), key=self.key) from None
        if (before := self.files.existing()) and not self.force:
            raise InvalidInput("is there already; --force replaces it", path=str(before[0]), key=self.key)

    @property
    def files(self) -> ShardedWeights:
        """The files of weights there."""
        return ShardedWeights(self.folder, self.stem, self.part_bytes, self.disk)


def save_weights(
    run: TrainedRun,
    files: WeightFiles,
    place: ExportTarget,
    dtype: Precision | None = None,
    progress: Callable[[float], None] = lambda done: None,
) -> list[Path]:
    """Write every name in the model's state, and in that of a loss with parameters, in parts with an index where it is
    more than one file may hold.

    Arguments:
        files: where the weights are read from.
        dtype: the precision of floating tensors; None keeps the model's own.
        progress: hears which share is done, from 0 to 1.

    Returns:
        The files that were written.

    Raises:
        InvalidInput: `place` cannot be written to, the weights are not those of the model, or they hold numbers that
            `dtype` cannot represent.
        RunFailed: the disk refuses.
    """
    place.prepare()
    model = make_model(run.job, run.job_file, "meta")
    state = {**_state(model), **loss_weights(make_loss(run.job, run.job_file))}
    return _write(run, files, state, place, dtype, progress)


def save_huggingface(
    run: TrainedRun,
    files: WeightFiles,
    place: ExportTarget,
    dtype: Precision | None = None,
    progress: Callable[[float], None] = lambda done: None,
) -> list[Path]:
    """Write config.json, generation_config.json and the weights so that `from_pretrained` of transformers reads them.

    The tokenizer, and the generation's settings where there are some, are those beside the job's `initial_weights`.
    Arguments, result and errors are those of `save_weights`; a job whose model comes from a factory, or has
    bottlenecks, is refused too. Of tied weights one name is written, because transformers ties them again.
    """
    if run.job.model.huggingface is None:
        raise InvalidInput("the job's model comes from a factory: export its weights with --weights", key=place.key)
    if run.job.model.bottlenecks:
        message = (
            "the job's model has bottlenecks, which transformers' class has not: export its weights with --weights"
        )
        raise InvalidInput(message, key=place.key)
    place.prepare()
    source = folder_of_initial_weights(run.job, run.job_file)
    beside = [] if source is None else [source / name for name in (*TOKENIZER, GENERATION) if (source / name).is_file()]
    for name in (CONFIG, GENERATION, *(one.name for one in beside)):
        if (place.folder / name).exists() and not place.force:
            raise InvalidInput("is there already; --force replaces it", path=str(place.folder / name), key=place.key)
    model = make_model(run.job, run.job_file, "meta")
    others = {name for several in aliases(model).values() for name in several}
    state = {name: tensor for name, tensor in _state(model).items() if name not in others}
    unfinished = replace(place, folder=place.folder / UNFINISHED)
    shutil.rmtree(unfinished.folder, ignore_errors=True)  # what a crash left
    try:
        written = _write(run, files, state, unfinished, dtype, progress)
        kept = next(tensor.dtype for tensor in model.parameters() if tensor.is_floating_point())
        texts = {CONFIG: huggingface_config(model, kept if dtype is None else _DTYPES[dtype]).encode()}
        settings = huggingface_generation(model)
        if settings is not None:
            texts[GENERATION] = settings.encode()
        with told(place.folder):
            texts |= {one.name: one.read_bytes() for one in beside}
            for name, text in texts.items():
                place.disk.write_bytes(unfinished.folder / name, text)
                place.disk.sync_file(unfinished.folder / name)
            return _moved([*texts, *(path.name for path in written)], unfinished.folder, place)
    finally:
        shutil.rmtree(unfinished.folder, ignore_errors=True)


def _moved(names: list[str], source: Path, place: ExportTarget) -> list[Path]:
    """Move these files to their place; config.json, the first of them, tells that the folder is whole, and comes last.

    Returns them in their order. Raises OSError.
    """
    disk, folder = place.disk, place.folder
    disk.remove_file(folder / CONFIG)
    disk.sync_folder(folder)
    for left in place.files.existing():
        disk.remove_file(left)  # a part of older weights could be taken for one of these
    for name in reversed(names):
        if name == CONFIG:
            disk.sync_folder(folder)
        disk.move(source / name, folder / name)
    disk.sync_folder(folder)
    return [folder / name for name in names]


def _state(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors in the model's state, by name."""
    return {name: tensor for name, tensor in model.state_dict().items() if isinstance(tensor, Tensor)}


def _write(
    run: TrainedRun,
    files: WeightFiles,
    state: Mapping[str, Tensor],
    place: ExportTarget,
    dtype: Precision | None,
    progress: Callable[[float], None],
) -> list[Path]:
    """Write the weights that `state` names, with its shapes and precisions."""
    weights = saved_weights(run.job, run.job_file, files)
    kinds = {name: _kind(tensor, dtype) for name, tensor in state.items()}
    forms = {name: TensorForm(name, kinds[name], tuple(tensor.shape)) for name, tensor in state.items()}
    return place.files.write(forms, lambda name: _converted(name, weights[name], kinds[name], files.path), progress)


def _kind(tensor: Tensor, dtype: Precision | None) -> torch.dtype:
    return tensor.dtype if dtype is None or not tensor.is_floating_point() else _DTYPES[dtype]


def _converted(name: str, tensor: Tensor, dtype: torch.dtype, source: Path) -> Tensor:
    converted = tensor.to(dtype)
    if dtype.is_floating_point and bool(converted.isinf().any()) and not bool(tensor.isinf().any()):
        message = f"holds {float(tensor.abs().max()):.3g}, beyond what {dtype} can; use bfloat16"
        raise InvalidInput(message, path=str(source), key=name)
    return converted


@dataclass(frozen=True)
class Exported:
    """The files and points that an export wrote."""

    files: tuple[Path, ...]
    """The files of weights, with their index and config.json where there are any."""

    points: int | None
    """The number of points written for TensorBoard; None where that was not asked for."""


def export_run(
    run: Path,
    *,
    weights: Path | None,
    huggingface: Path | None,
    tensorboard: Path | None,
    dtype: Precision | None,
    part_gb: float,
    job_path: Path | None,
    force: bool,
    step: Callable[[str], None],
    progress: Callable[[float], None],
) -> Exported:
    """Writes the weights and metrics of the run in the folder `run`; ravnest.export documents the arguments.

    Raises InvalidInput as check_export does, and as save_weights, save_huggingface and to_tensorboard do.
    """
    check_export(weights, huggingface, tensorboard, dtype=dtype, part_gb=part_gb, force=force)
    points = None
    if tensorboard is not None:
        step(f"writing the metrics to {tensorboard}")
        points = to_tensorboard(run, tensorboard, progress)
    if weights is None and huggingface is None:
        return Exported((), points)
    opened = open_run(run, job_path)
    files = open_weights_of_run(opened)
    written: list[Path] = []
    for target, key, save in ((weights, "weights", save_weights), (huggingface, "huggingface", save_huggingface)):
        if target is None:
            continue
        folder, stem = (target.parent, target.stem) if key == "weights" else (target, "model")
        step(f"writing the weights to {folder / stem}.safetensors")
        place = ExportTarget(folder, stem, key, force, int(part_gb * 1e9))
        written += save(opened, files, place, dtype, progress)
    return Exported(tuple(written), points)


def check_export(
    weights: Path | None,
    huggingface: Path | None,
    tensorboard: Path | None,
    *,
    dtype: Precision | None,
    part_gb: float,
    force: bool,
) -> None:
    """Raises InvalidInput where the arguments of an export do not fit each other."""
    if weights is None and huggingface is None:
        if tensorboard is None:
            raise InvalidInput("nothing was named to export", hint=_WHAT_TO_EXPORT)
        if dtype is not None or force:
            key = "force" if dtype is None else "dtype"
            raise InvalidInput("is about weights, and none are to be written", key=key, hint=_WHAT_TO_EXPORT)
    if weights is not None and (weights.suffix != ".safetensors" or weights.is_dir()):
        raise InvalidInput("expected the name of a .safetensors file", path=str(weights), key="weights")
    if not (math.isfinite(part_gb) and part_gb >= 0):
        raise InvalidInput(f"must be a finite number, 0 or more, not {part_gb:g}", key="part_gb")


_WHAT_TO_EXPORT = "give --weights FILE, --huggingface DIR or --tensorboard DIR (arguments of these names in Python)"
