"""One stage of a volunteer's model, on a machine that the volunteer is lent: its weights, gradients and optimizer.

In: a job, a span of its captured model, and tensors of micro-batches by the numbers of their turns. Out: outputs, a
loss, gradients, and sums of these. It holds its own span's weights and no others, and reads no data. A step is the same
as that of the whole model on one machine (trainer.py): the same mean, the same optimizer for each parameter. A tied
parameter is held by every stage that uses it: its sums are added up by who asks for them, and all make the same step.
"""

from collections.abc import Container, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor, nn

from ravnest.errors import InvalidInput
from ravnest.factories import import_modules
from ravnest.job.config import Job
from ravnest.job.materials import make_model, search_dirs
from ravnest.splitting import StageModule, StageProgram, initial_buffers, initial_weights
from ravnest.stage.backward import MicroBatchGraph, Root, whole
from ravnest.training.batches import Target
from ravnest.training.losses import Loss, build_loss
from ravnest.training.optimizer import build_optimizer, learning_rate, partition
from ravnest.training.weights import ParameterSet


@dataclass(frozen=True)
class Made:
    """What a backward leaves: gradients of the stage's inputs, and whether those of its weights are finite."""

    gradients: tuple[Tensor, ...]
    finite: bool


class LentStage:
    """One stage. All methods belong to one thread."""

    def __init__(
        self,
        job: Job,
        job_file: Path,
        program: StageProgram,
        trained: Sequence[str],
        *,
        last: bool,
        total_steps: int | None,
        device: str = "cpu",
    ) -> None:
        """`trained`: the names of all parameters of the model that are trained, of any stage. `total_steps`: of the
        whole collaboration. Its trained weights are zero until they are set. Raises InvalidInput."""
        dirs = search_dirs(job_file)
        import_modules(program.imports, dirs)
        self.program, self._job, self._device, self._total_steps = program, job, torch.device(device), total_steps
        held = {spec.name for spec in (*program.parameters, *program.borrowed)} & {*trained}
        weights = {
            spec.name: torch.zeros(spec.shape, dtype=spec.dtype) for spec in program.weight_specs if spec.name in held
        }
        frozen = any(spec.name not in held for spec in (*program.parameters, *program.borrowed))
        fixed = (initial_weights if frozen else initial_buffers)(lambda: make_model(job, job_file), job.seed)
        self._module = StageModule(program, {**fixed, **weights}, device, copy=False)
        self._parameters = {name: one for name, one in self._module.named_parameters() if name in held}
        self._buffers = dict(self._module.named_buffers())
        self._loss: Loss | None = build_loss(job.loss, dirs, device) if last else None
        self._optimizers = {
            name: (config, build_optimizer(config, [(name, self._parameters[name])]))
            for config, names in partition(job.optimizer, trained)
            for name in names
            if name in held
        }
        self._sums = {name: torch.zeros(one.numel()) for name, one in self._parameters.items()}
        self._kept: dict[str, dict[str, Tensor]] = {}
        self._means: dict[str, Tensor] = {}
        self._alive: dict[int, tuple[MicroBatchGraph, list[tuple[torch.Size, torch.dtype]]]] = {}
        """By turn, with the forms of the gradients that its backward takes."""
        self._made: dict[int, dict[str, Tensor]] = {}
        self._step = 0

    # Micro-batches.

    def forward(self, turn: int, inputs: Sequence[Tensor], target: Target | None) -> tuple[Tensor, ...]:
        """The outputs, to be sent on; or the loss alone at the last stage. Raises InvalidInput for other inputs."""
        specs = self.program.inputs
        if (target is None) != (self._loss is None):
            raise InvalidInput("the last stage takes a target with each micro-batch, and no other stage takes one")
        if len(inputs) != len(specs):
            raise InvalidInput(f"a stage takes {len(specs)} tensors, got {len(inputs)}")
        for tensor, spec in zip(inputs, specs, strict=True):
            sizes = zip(tensor.shape, spec.shape, strict=False)
            if (
                tensor.dtype != spec.dtype
                or tensor.dim() != len(spec.shape)
                or any(b not in (a, None) for a, b in sizes)
            ):
                what = f"{tensor.dtype} {tuple(tensor.shape)}"
                raise InvalidInput(f"a stage takes {spec.name!r} as {spec.dtype} {spec.shape}, not {what}")
        leaves = tuple(
            tensor.to(self._device).requires_grad_(spec.needs_gradient)
            for tensor, spec in zip(inputs, specs, strict=True)
        )
        self._module.train()
        with self._autocast():
            outputs: tuple[Tensor, ...] = self._module(*leaves)
            if self._loss is not None:
                loss = self._loss.mean(self._module.returned(outputs), target)
                self._alive[turn] = MicroBatchGraph(leaves, loss, (), ParameterSet(self._parameters)), []
                return (loss.detach().to("cpu"),)
        pairs = list(zip(outputs, self.program.outputs, strict=True))
        outputs = tuple(output.to(spec.dtype) for output, spec in pairs)
        needing = [output for output, (_, spec) in zip(outputs, pairs, strict=True) if spec.needs_gradient]
        fed = tuple(place for place, output in enumerate(needing) if output.requires_grad)
        root = Root([needing[place] for place in fed]) if fed else None
        likes = [(output.shape, output.dtype) for output in needing]
        self._alive[turn] = MicroBatchGraph(leaves, root, fed, ParameterSet(self._parameters)), likes
        return tuple(output.detach().to("cpu") for output in outputs)

    def backward(self, turn: int, received: Sequence[Tensor]) -> Made:
        """Run the backward of a micro-batch; `received`: the gradients of its outputs, none at the last stage.

        Raises InvalidInput for other gradients, or where no forward of that turn is under way.
        """
        if turn not in self._alive:
            raise InvalidInput(f"no forward of micro-batch {turn} waits for its backward")
        graph, likes = self._alive.pop(turn)
        if [(one.shape, one.dtype) for one in received] != likes:
            found = ", ".join(f"{one.dtype} {tuple(one.shape)}" for one in received)
            raise InvalidInput(f"{found or 'nothing'} came as the gradients of {len(likes)} outputs of other forms")
        for one in self._parameters.values():
            one.grad = None
        whole(graph, tuple(tensor.to(self._device) for tensor in received))
        made = {name: one.grad for name, one in self._parameters.items() if one.grad is not None}
        for one in self._parameters.values():
            one.grad = None
        self._made[turn] = made
        finite = not made or bool(torch.isfinite(torch.nn.utils.get_total_norm(list(made.values()))))
        gradients = tuple(
            (torch.zeros_like(leaf) if leaf.grad is None else leaf.grad.contiguous()).to("cpu")
            for leaf, spec in zip(graph.inputs, self.program.inputs, strict=True)
            if spec.needs_gradient
        )
        return Made(gradients, finite)

    def count(self, turn: int, samples: int) -> None:
        """Add the gradient of that turn to the sum, and forget those of earlier turns."""
        for name, gradient in self._made.get(turn, {}).items():
            self._sums[name].add_(gradient.reshape(-1).to("cpu"), alpha=samples)
        for earlier in [one for one in chain(self._made, self._alive) if one <= turn]:
            self._made.pop(earlier, None)
            self._alive.pop(earlier, None)

    @property
    def under_way(self) -> int:
        """Micro-batches whose backward has not come."""
        return len(self._alive)

    def drop_turns(self) -> None:
        """Forget all micro-batches under way."""
        self._made.clear()
        self._alive.clear()

    def drop_sums(self) -> None:
        """Forget what was added up."""
        for total in self._sums.values():
            total.zero_()

    # What is asked for.

    def take_sum(self, name: str) -> Tensor:
        """The sum of a parameter's gradients, flat; it begins anew. Raises InvalidInput."""
        total = self._sums[self._known(name, self._sums)]
        self._sums[name] = torch.zeros_like(total)
        return total

    def weight(self, name: str) -> Tensor:
        """A parameter, flat. Raises InvalidInput."""
        return self._parameters[self._known(name, self._parameters)].detach().reshape(-1).to("cpu")

    def buffer(self, name: str) -> Tensor:
        """A buffer, flat. Raises InvalidInput."""
        return self._buffers[self._known(name, self._buffers)].detach().reshape(-1).to("cpu")

    # Steps and states.

    def clear(self, step: int) -> None:
        """A state of that step follows: forget the optimizer's, the sums, and what is under way."""
        self._step = step
        self.drop_turns()
        self.drop_sums()
        for _, optimizer in self._optimizers.values():
            optimizer.state.clear()

    def set_weight(self, name: str, vector: Tensor) -> None:
        """Raises InvalidInput for a parameter that is not held, or of another size."""
        _fill(self._parameters[self._known(name, self._parameters)].data, vector, name)

    def set_buffer(self, name: str, vector: Tensor) -> None:
        """Raises InvalidInput for a buffer that is not held, or of another size."""
        _fill(self._buffers[self._known(name, self._buffers)], vector, name)

    def set_optimizer(self, name: str, key: str, vector: Tensor) -> None:
        """One tensor of what the optimizer keeps of a parameter. It has the parameter's shape, or is one number, or a
        vector of its own (a factored second moment). Raises InvalidInput for a parameter that is not held."""
        _, optimizer = self._optimizers[self._known(name, self._optimizers)]
        parameter = self._parameters[name]
        like = self._likes(name).get(key)
        if like is None or like.numel() != vector.numel():
            raise InvalidInput(f"{vector.numel()} numbers are no {key!r} that the optimizer keeps of {name!r}")
        value = vector.reshape(like.shape).to(like.dtype)
        optimizer.state[parameter][key] = (value.to(self._device) if like.dim() else value).clone()

    def set_mean(self, name: str, vector: Tensor) -> None:
        """The gradient of the next step. Raises InvalidInput for a parameter that is not held, or of another size."""
        _require_like(self._parameters[self._known(name, self._parameters)], vector, name)
        self._means[name] = vector

    def step(self) -> None:
        """Make one step of the means that were set, each parameter. Raises InvalidInput where one lacks."""
        if self._means.keys() != self._parameters.keys():
            raise InvalidInput("a step needs the mean of each parameter that the stage holds")
        for name, (config, optimizer) in self._optimizers.items():
            parameter = self._parameters[name]
            parameter.grad = self._means.pop(name).reshape(parameter.shape).to(self._device)
            rate = learning_rate(config.lr, config.schedule, self._step, self._total_steps)
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            parameter.grad = None
        self._step += 1

    def _likes(self, name: str) -> dict[str, Tensor]:
        """What the optimizer keeps of a parameter after a step, without values: found on a copy that is thrown away."""
        if name not in self._kept:
            config, _ = self._optimizers[name]
            copy = nn.Parameter(torch.zeros_like(self._parameters[name], device="cpu"))
            copy.grad = torch.zeros_like(copy)
            optimizer = build_optimizer(config, [(name, copy)])
            optimizer.step()
            kept = {key: value for key, value in optimizer.state[copy].items() if isinstance(value, Tensor)}
            self._kept[name] = {key: torch.empty_like(value, device="meta") for key, value in kept.items()}
        return self._kept[name]

    def _known(self, name: str, held: Container[str]) -> str:
        if name not in held:
            raise InvalidInput(f"units {self.program.start}-{self.program.end} hold no {name!r}")
        return name

    def _autocast(self) -> AbstractContextManager[object]:
        if self._job.precision == "float32":
            return nullcontext()
        return torch.autocast(self._device.type, torch.bfloat16)


def _require_like(tensor: Tensor, vector: Tensor, name: str) -> None:
    if vector.numel() != tensor.numel() or vector.dtype != tensor.dtype:
        raise InvalidInput(f"{name!r} is {tensor.dtype} of {tensor.numel()}, not {vector.dtype} of {vector.numel()}")


def _fill(tensor: Tensor, vector: Tensor, name: str) -> None:
    _require_like(tensor, vector, name)
    with torch.no_grad():
        tensor.copy_(vector.reshape(tensor.shape))
