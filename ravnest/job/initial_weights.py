"""The weights that a job's seed gives: each made where it is needed, and no other with it.

In: a job, and the file that it was read from. Out: `WeightsFromSeed`: every weight and buffer by name, or how a stage
makes those of its span (`Initialization`). Where a constructor cannot be recorded (it loads weights from a file, or
calls what fake tensors lack), the whole model is made as its constructor makes it, after torch.manual_seed;
`whole_because` then says why, for `ravnest plan` and the notices of a run.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property
from pathlib import Path

from torch import Tensor, nn

from ravnest.checkpoints.own_copies import StoredCopy
from ravnest.errors import InvalidInput
from ravnest.factories import describe
from ravnest.job.config import Job
from ravnest.job.materials import make_loss, make_model
from ravnest.splitting import Initialization, initial_buffers, initial_weights
from ravnest.splitting.program import LOSS_MODULE
from ravnest.training.loss_parameters import loss_weights, module_with_parameters


class WeightsFromSeed(Mapping[str, Tensor]):
    """Weights and buffers by name, those of a loss with parameters included.

    A tensor is made each time it is asked for, and not kept. Nothing is built before anything is asked for.
    """

    def __init__(self, job: Job, job_file: str | Path, *, parameters: bool = True) -> None:
        """`parameters`: False leaves out the model's parameters."""
        self._job, self._job_file, self._parameters = job, job_file, parameters

    @property
    def whole_because(self) -> str:
        """Why the weights cannot be made one by one; empty where they can."""
        return self._recorded if isinstance(self._recorded, str) else ""

    def __getitem__(self, name: str) -> Tensor:
        if isinstance(self._recorded, str):
            return self._whole[name]
        for part in self._recorded:
            if name in part.results:
                return part.only([name]).make(self._job.seed)[name]
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        if isinstance(self._recorded, str):
            yield from self._whole
        else:
            for part in self._recorded:
                yield from part.results

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def all(self) -> dict[str, Tensor]:
        """All of them at once, which takes the memory of the model."""
        if isinstance(self._recorded, str):
            return dict(self._whole)
        return {name: tensor for part in self._recorded for name, tensor in part.make(self._job.seed).items()}

    def only(self, names: Collection[str]) -> tuple[Initialization, ...]:
        """How those of `names` are made; nothing where the weights are made whole."""
        if isinstance(self._recorded, str):
            return ()
        wanted = [[name for name in part.results if name in names] for part in self._recorded]
        return tuple(part.only(mine) for part, mine in zip(self._recorded, wanted, strict=True) if mine)

    def stored(self, names: Collection[str]) -> dict[str, StoredCopy]:
        """Where those of `names` lie that files hold: nowhere."""
        return {}

    @cached_property
    def _recorded(self) -> tuple[Initialization, ...] | str:
        """How the model and the loss make their weights; a text that says why that is not known."""
        from ravnest.splitting import record  # with torch's tracing, which a stage's process does without

        loss = _loss(self._job, self._job_file)
        try:
            model = record(lambda: make_model(self._job, self._job_file), self._job.seed)
            if not self._parameters:
                model = model.only(model.results.keys() - model.parameters)
            if loss is None:
                return (model,)
            part = record(lambda: _holding(loss()), self._job.seed)
        except InvalidInput as error:
            return error.message
        except Exception as error:  # noqa: BLE001 - a constructor may fail in any way on fake tensors
            return describe(error)
        saved = loss_weights(make_loss(self._job, self._job_file))
        return model, part.only(saved)

    @cached_property
    def _whole(self) -> dict[str, Tensor]:
        make = initial_weights if self._parameters else initial_buffers
        made = make(lambda: make_model(self._job, self._job_file), self._job.seed)
        return {**made, **loss_weights(make_loss(self._job, self._job_file))}


def _loss(job: Job, job_file: str | Path) -> Callable[[], nn.Module] | None:
    """Makes the loss's module; None where it has no parameters."""
    if module_with_parameters(make_loss(job, job_file)) is None:
        return None

    def module() -> nn.Module:
        made = module_with_parameters(make_loss(job, job_file))
        assert made is not None
        return made

    return module


def _holding(loss: nn.Module) -> nn.Module:
    """A module in which the loss's weights have the names that they have in the last stage."""
    holder = nn.Module()
    holder.add_module(LOSS_MODULE, loss)
    return holder


def make_weights(job: Job, job_file: str | Path) -> dict[str, Tensor]:
    """The initial weights and buffers that the job's seed gives, by name, those of a loss with parameters included."""
    return WeightsFromSeed(job, job_file).all()


def make_buffers(job: Job, job_file: str | Path) -> dict[str, Tensor]:
    """The buffers that `make_weights` makes, without ever holding all parameters in memory."""
    return WeightsFromSeed(job, job_file, parameters=False).all()
