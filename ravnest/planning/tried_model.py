"""The model that planning tries with values: the whole one, one with fewer equal blocks, or none.

In: a job, its model without values, and how much is to be checked. Out: a `TriedModel` on the CPU with the values that
it starts from, and its capture. With `sampled`, two of the blocks that repeat are tried (splitting/thinning.py), so
that planning takes the memory of two blocks and of what stands around them, whatever their number.
"""

import copy
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from torch import Tensor, nn

from ravnest.errors import InvalidInput, naming
from ravnest.formatting import size
from ravnest.job.config import Job
from ravnest.job.initial_weights import WeightsFromSeed
from ravnest.job.materials import JobData, capture_job, make_model
from ravnest.planning.mapped_weights import MAPPED_BYTES, MappedWeights, Place, filled, weight_bytes
from ravnest.splitting import CapturedModel, captured_short
from ravnest.splitting.exporting import twin_on_cpu
from ravnest.splitting.model_source import computed
from ravnest.splitting.program import is_narrow
from ravnest.splitting.thinning import KEPT, Blocks, check_repeats, keep_first, repeated_blocks

Check = Literal["full", "sampled", "none"]
_WHOLE = "; this was tried on {} of the {} blocks of {!r}, and --check full tries the whole model"


def check_of(word: str) -> Check:
    """The word as a Check. Raises InvalidInput for any other."""
    for known in get_args(Check):
        if word == known:
            return known  # type: ignore[no-any-return]
    raise InvalidInput(f"must be one of {', '.join(get_args(Check))}, not {word!r}", key="check")


@dataclass(frozen=True)
class TriedModel:
    """A model with values, on the CPU."""

    model: nn.Module
    blocks: Blocks | None
    """The blocks of which it has only two; None where it is the whole model."""
    mapped: MappedWeights | None = None
    """Where its large weights are; None where they are in memory."""

    @property
    def places(self) -> Mapping[str, Place]:
        """Where each weight is that lies in a file."""
        return {} if self.mapped is None else self.mapped.places

    def sparing(self) -> AbstractContextManager[Any]:
        """While it runs: takes no memory for weights that lie in files."""
        return nullcontext() if self.mapped is None else self.mapped.sparing()

    def hold(self, name: str, tensor: Tensor) -> Tensor:
        """A tensor of the same values: in a file where the weights are in files."""
        return tensor if self.mapped is None else self.mapped.put(name, tensor)

    def capture(self, job: Job, job_file: str | Path, data: JobData, whole: CapturedModel) -> CapturedModel:
        """Its capture: `whole` itself, or that of the short model.

        Raises ModelNotSplittable where the whole model does not repeat what the short one does.
        """
        blocks = self.blocks
        if blocks is None:
            return whole
        with naming(job_file, "model"):
            short = captured_short(whole, self.model)
        if short is None:
            short = capture_job(job, job_file, data, lambda model: keep_first(model, blocks))
        with naming(job_file, "model"):
            check_repeats(whole.modes, short.modes, blocks)
        return short

    @contextmanager
    def told(self) -> Iterator[None]:
        """What is raised inside says that fewer blocks were tried, where they were."""
        try:
            yield
        except InvalidInput as error:
            if self.blocks is None or _is_told(error):
                raise
            said = error.message + _WHOLE.format(KEPT, self.blocks.count, self.blocks.path)
            raise type(error)(said, path=error.path, key=error.key, hint=error.hint) from error


def _is_told(error: InvalidInput) -> bool:
    return "--check full" in error.message


def tried_model(
    job: Job,
    job_file: str | Path,
    shape: nn.Module,
    check: Check,
    free_bytes: int,
    weights: WeightsFromSeed | None = None,
    *,
    mapped_bytes: int = MAPPED_BYTES,
) -> TriedModel | None:
    """The model to try; None with `none`.

    shape: the job's model, on the meta device where it can be. free_bytes: the memory that may be taken. weights: those
    that the job's seed gives, where they are at hand. mapped_bytes: from which size on a model's weights lie in files.
    Raises InvalidInput where trying it takes more memory.
    """
    if check == "none":
        return None
    weights = WeightsFromSeed(job, job_file) if weights is None else weights
    blocks = repeated_blocks(shape) if check == "sampled" else None
    short = shape
    if blocks is not None:
        short = copy.deepcopy(shape, computed(shape))
        keep_first(short, blocks)
    mapped = weight_bytes(short) >= mapped_bytes and not weights.whole_because
    check_room(job_file, short, free_bytes, sampled=check == "sampled", mapped=mapped)
    if mapped:
        files = MappedWeights()
        return TriedModel(filled(twin_on_cpu(short), weights.__getitem__, files), blocks, files)
    if blocks is None:
        return TriedModel(make_model(job, job_file, "cpu"), None)
    if weights.whole_because:
        model = make_model(job, job_file, "cpu")
        keep_first(model, blocks)
        return TriedModel(model, blocks)
    return TriedModel(filled(twin_on_cpu(short), weights.__getitem__), blocks)


def check_room(
    job_file: str | Path, model: nn.Module, free_bytes: int, *, sampled: bool = False, mapped: bool = False
) -> None:
    """Raises InvalidInput where trying `model`, which is on the meta device, takes more memory than `free_bytes`.

    Without this check the kernel would end the command, and nobody would be told why. `sampled`: whether the model is
    what the check of two blocks tries. `mapped`: whether its weights lie in files.
    """
    less = "--check none" if sampled else "--check sampled, which tries two of the blocks that repeat"
    hint = f"plan on a larger machine, or with {less}"
    if mapped:
        # One weight, its gradient, and what a backward makes of them while it adds.
        largest = max(_compared_bytes(tensor) for tensor in (*model.parameters(), *model.buffers()))
        if 3 * largest > free_bytes:
            message = f"has a weight of {size(largest)}; to check the model, planning holds it, its gradient and a copy"
            message += f", which takes {size(3 * largest)}, and this machine has {size(free_bytes)} left"
            raise InvalidInput(message, path=str(job_file), key="model", hint=hint)
        return
    weights = weight_bytes(model)
    tensors = (*model.parameters(), *model.buffers())
    wide = sum(_compared_bytes(tensor) for tensor in tensors if is_narrow(tensor.dtype))
    gradients = sum(_compared_bytes(parameter) for parameter in model.parameters() if parameter.requires_grad)
    # The stages share the weights of the model; the gradients of both are compared. Activations come on top.
    needed = weights + wide + 2 * gradients
    if needed > free_bytes:
        raise InvalidInput(
            f"has {size(weights)} of weights; to check it against its stages, planning holds them and the gradients"
            f" twice, which takes {size(needed)}, and this machine has {size(free_bytes)} left",
            path=str(job_file),
            key="model",
            hint=hint,
        )


def _compared_bytes(tensor: Tensor) -> int:
    """The bytes in the form in which it is compared: types of 16 bits are, in the end, compared as float32."""
    return tensor.numel() * 4 if is_narrow(tensor.dtype) else tensor.nbytes
