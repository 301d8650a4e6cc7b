"""The model that planning tries with values: the whole one, one with fewer equal blocks, or none.

In: a job, its model without values, and how much is to be checked. Out: a `TriedModel` on the CPU with the values that
it starts from, and its capture. With `sampled`, two of the blocks that repeat are tried (splitting/thinning.py), so
that planning takes the memory of two blocks and of what stands around them, whatever their number.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from torch import nn

from ravnest.errors import InvalidInput, naming
from ravnest.formatting import size
from ravnest.job.config import Job
from ravnest.job.initial_weights import WeightsFromSeed
from ravnest.job.materials import JobData, capture_job, make_model
from ravnest.splitting import CapturedModel
from ravnest.splitting.exporting import twin_on_cpu
from ravnest.splitting.model_source import weights_of
from ravnest.splitting.thinning import KEPT, Blocks, check_repeats, keep_two, repeated_blocks

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

    def capture(self, job: Job, job_file: str | Path, data: JobData, whole: CapturedModel) -> CapturedModel:
        """Its capture: `whole` itself, or that of the short model.

        Raises ModelNotSplittable where the whole model does not repeat what the short one does.
        """
        blocks = self.blocks
        if blocks is None:
            return whole
        short = capture_job(job, job_file, data, lambda model: keep_two(model, blocks))
        with naming(job_file, "model"):
            check_repeats(whole, short, blocks)
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


def tried_model(job: Job, job_file: str | Path, shape: nn.Module, check: Check, free_bytes: int) -> TriedModel | None:
    """The model to try; None with `none`.

    shape: the job's model, on the meta device where it can be. free_bytes: the memory that may be taken.
    Raises InvalidInput where trying it takes more memory.
    """
    if check == "none":
        return None
    blocks = repeated_blocks(shape) if check == "sampled" else None
    if blocks is None:
        check_room(job_file, shape, free_bytes, sampled=check == "sampled")
        return TriedModel(make_model(job, job_file, "cpu"), None)
    short = copy.deepcopy(shape)
    keep_two(short, blocks)
    check_room(job_file, short, free_bytes, sampled=True)
    weights = WeightsFromSeed(job, job_file)
    if weights.whole_because:
        model = make_model(job, job_file, "cpu")
        keep_two(model, blocks)
        return TriedModel(model, blocks)
    return TriedModel(_filled(twin_on_cpu(short), weights), blocks)


def _filled(model: nn.Module, weights: WeightsFromSeed) -> nn.Module:
    """The model with the values that the job's seed gives, made one at a time."""
    for name, tensor in weights_of(model).items():
        tensor.copy_(weights[name])
    return model


def check_room(job_file: str | Path, model: nn.Module, free_bytes: int, *, sampled: bool = False) -> None:
    """Raises InvalidInput where trying `model`, which is on the meta device, takes more memory than `free_bytes`.

    Without this check the kernel would end the command, and nobody would be told why. `sampled`: whether the model is
    what the check of two blocks tries.
    """
    weights = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    gradients = sum(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad)
    # The stages share the weights of the model; the gradients of both are compared. Activations come on top.
    needed = weights + 2 * gradients
    if needed > free_bytes:
        less = "--check none" if sampled else "--check sampled, which tries two of the blocks that repeat"
        raise InvalidInput(
            f"has {size(weights)} of weights; to check it against its stages, planning holds them and the gradients"
            f" twice, which takes {size(needed)}, and this machine has {size(free_bytes)} left",
            path=str(job_file),
            key="model",
            hint=f"plan on a larger machine, or with {less}",
        )
