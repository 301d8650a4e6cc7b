"""A job's whole model on one machine: gradients of micro-batches, their sum, steps of the mean, and the state.

In: a job of mode `collaborative`, numbers of micro-batches, means of gradients. Out: losses, flat vectors of float32,
and everything that a joiner needs, by name. A step depends on the state and the mean alone, so that all who apply the
same means have the same weights. Running statistics (float buffers) are averaged with the gradients; each peer counts
its batches by itself. Data, dropout and the order of samples are each peer's own, from the seed that it is given.
"""

import copy
import hashlib
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ravnest.collaboration.low_rank import LowRank
from ravnest.collaboration.packing import Packing
from ravnest.collaboration.transfers import DTYPES, Form
from ravnest.errors import InvalidInput, RunFailed
from ravnest.job.config import Job
from ravnest.job.materials import JobData, load_data, make_model, search_dirs
from ravnest.training.batches import Inputs, Target, arguments
from ravnest.training.losses import build_loss, build_metrics
from ravnest.training.optimizer import (
    build_optimizer,
    clip_scale,
    learning_rate,
    partition,
)
from ravnest.training.sampler import ENDLESS, EvaluationBatches, Sampler, derive_seed

GRADIENTS = "gradients"
STATISTICS = "statistics"


READ_S = 10.0
"""Reading a micro-batch that is computed again waits so long for who reads the held-out set."""


class NotRead(RunFailed):
    """A micro-batch's data cannot be read now."""


class NotFinite(RunFailed):
    """A micro-batch's loss or gradient is NaN or infinite. Nothing was changed by it."""


@dataclass(frozen=True)
class MicroBatch:
    """One micro-batch: its mean loss, and how many samples it has."""

    loss: float
    samples: int


class Trainer:
    """Owns the model and the optimizer. All methods belong to one thread; what evaluation() returns, to any."""

    def __init__(self, job: Job, job_file: Path, *, device: str = "cpu", order: str = "") -> None:
        """`order`: seeds the order of this peer's samples, with the job's seed. `device`: meta for a model whose values
        others hold (staged_trainer.py). Raises InvalidInput at the job."""
        require_collaborative(job, job_file)
        assert job.target_batch is not None
        self.job, self.target_batch = job, job.target_batch
        self.data: JobData = load_data(job, job_file)
        torch.manual_seed(job.seed)
        holds = device != "meta"
        self.model: nn.Module = make_model(job, job_file).to(device) if holds else make_model(job, job_file, device)
        self._device = torch.device(device if holds else "cpu")
        self._loss = build_loss(job.loss, search_dirs(job_file), device if holds else "cpu")
        if self._loss.module is not None and any(True for _ in self._loss.module.parameters()):
            raise InvalidInput("its parameters cannot be trained collaboratively yet", path=str(job_file), key="loss")
        self._metrics = build_metrics(job.metrics, search_dirs(job_file), device if holds else "cpu")
        named = {name: one for name, one in self.model.named_parameters() if one.requires_grad}
        if not named:
            raise InvalidInput("the model has no parameter to train", path=str(job_file), key="model")
        for name, one in named.items():
            if one.dtype != torch.float32:
                raise InvalidInput(f"{name!r} is {one.dtype}; only float32 is trained collaboratively", key="model")
        self._parameters = list(named.values())
        self._statistics = {
            name: buffer for name, buffer in self.model.named_buffers() if buffer.dtype == torch.float32
        }
        self._counters = {name: buffer for name, buffer in self.model.named_buffers() if buffer.dtype == torch.int64}
        self._groups = [
            (config, names, build_optimizer(config, [(name, named[name]) for name in names]))
            for config, names in partition(job.optimizer, named)
        ]
        self._named = named
        if job.spot_check_share and len(self.data.train) == ENDLESS:
            raise InvalidInput(
                "a stream is read in its order: no micro-batch of it can be computed again",
                path=str(job_file),
                key="spot_check_share",
            )
        epochs = job.stop.epochs
        samples = job.stop.samples if epochs is None else int(epochs * len(self.data.train))
        self.total_steps = None if samples is None else max(1, math.ceil(samples / self.target_batch))
        """Steps of the whole collaboration; None where it ends by time."""
        learning_rate(job.optimizer.lr, job.optimizer.schedule, 0, self.total_steps)
        self.order = order
        seed = derive_seed(job.seed, order, 0, 0, "volunteer")
        self._sampler = self._sampler_of(order)
        torch.manual_seed(seed & (2**63 - 1))  # dropout is each peer's own
        elements = sum(one.numel() for one in self._parameters)
        rank = job.gradient_rank
        self.packing = Packing(
            (
                Form(GRADIENTS, torch.float32, elements, job.averaging.ring_wire),
                Form(STATISTICS, torch.float32, sum(one.numel() for one in self._statistics.values())),
            ),
            None if rank is None else LowRank([one.shape for one in self._parameters], rank),
        )
        """What a contribution and an average hold, and how it travels."""
        self._sum = torch.zeros(elements if holds else 0)
        self._sum_samples = 0
        self._reading = threading.Lock()  # of data: both sets may read one file
        self.step = 0
        """Steps that the state has made."""

    def ready(self) -> None:
        """Be able to compute, before each visit: one machine always is. Raises RavnestError."""

    # Gradients.

    def compute(self, number: int) -> MicroBatch:
        """The gradient of this peer's micro-batch of that number, which count() adds or the next compute() forgets.

        Raises NotFinite.
        """
        return self._compute(*self.batch(number))

    def again(self, order: str, number: int) -> Tensor:
        """The gradient, flat, of the micro-batch of that number of the peer whose samples have this order, by the
        weights of this step. It leaves the state as it was, and no gradient. Raises NotFinite, NotRead."""
        sampler = self._sampler_of(order)
        buffers = [(buffer, buffer.detach().clone()) for buffer in self.model.buffers()]
        if not self._reading.acquire(timeout=READ_S):
            raise NotRead(f"the held-out set has been read for {READ_S:.0f} s")
        try:
            inputs, target = self.data.train.batch(sampler.batch(number), sampler.epoch(number))
        finally:
            self._reading.release()
        try:
            self._compute(inputs, target)
            whole = [torch.zeros_like(one) if one.grad is None else one.grad for one in self._parameters]
            return torch.cat([one.reshape(-1).to("cpu") for one in whole])
        finally:
            for one in self._parameters:
                one.grad = None
            for buffer, before in buffers:
                buffer.copy_(before)

    def _sampler_of(self, order: str) -> Sampler:
        seed = derive_seed(self.job.seed, order, 0, 0, "volunteer")
        return Sampler(len(self.data.train), seed, (0.0, 1.0), self.job.micro_batch)

    def _compute(self, inputs: Inputs, target: Target) -> MicroBatch:
        self.model.train()
        for one in self._parameters:
            one.grad = None
        positional, keywords = arguments(_to(inputs, self._device))
        with self._autocast():
            output = self.model(*positional, **keywords)
            loss = self._loss.mean(output, _to(target, self._device))
        mean = float(loss.detach())
        if not math.isfinite(mean):
            raise NotFinite(f"the loss of a micro-batch is {mean} (lower optimizer.lr?)")
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = [one.grad for one in self._parameters if one.grad is not None]
        norm = float(torch.nn.utils.get_total_norm(gradients))
        if not math.isfinite(norm):
            raise NotFinite(f"the norm of a micro-batch's gradient is {norm} (lower optimizer.lr?)")
        return MicroBatch(mean, self.job.micro_batch)

    def batch(self, number: int) -> tuple[Inputs, Target]:
        """(inputs, target) of this peer's micro-batch of that number."""
        return self.data.train.batch(self._sampler.batch(number), self._sampler.epoch(number))

    def count(self, samples: int) -> None:
        """Add the gradient that compute() has left to the sum."""
        at = 0
        for one in self._parameters:
            size = one.numel()
            if one.grad is not None:
                self._sum[at : at + size].add_(one.grad.detach().reshape(-1).to("cpu"), alpha=samples)
            at += size
        self._sum_samples += samples

    def contribution(self) -> list[Tensor]:
        """The sum over all samples since the last one, and the statistics times these samples. The sum begins anew."""
        samples, self._sum_samples = self._sum_samples, 0
        total, self._sum = self._sum, torch.zeros_like(self._sum)
        values = [buffer.detach().reshape(-1).to("cpu") for buffer in self._statistics.values()]
        statistics = torch.cat(values) * samples if values else torch.zeros(0)
        return [total, statistics]

    def forget(self) -> None:
        """Begin another sum, without what there is."""
        self._sum.zero_()
        self._sum_samples = 0

    # Steps.

    def apply(self, mean: Mapping[str, Tensor]) -> float:
        """Make one step of the mean of all contributions; returns the norm of the gradient before it is clipped."""
        gradient = mean[GRADIENTS]
        norm, scale = self.clipped(gradient)
        at = 0
        for one in self._parameters:
            part = gradient[at : at + one.numel()].reshape(one.shape)
            one.grad = (part * scale if scale != 1.0 else part.clone()).to(self._device)
            at += one.numel()
        for config, _, optimizer in self._groups:
            rate = learning_rate(config.lr, config.schedule, self.step, self.total_steps)
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
        at = 0
        for buffer in self._statistics.values():
            buffer.copy_(mean[STATISTICS][at : at + buffer.numel()].reshape(buffer.shape))
            at += buffer.numel()
        for one in self._parameters:
            one.grad = None
        self.step += 1
        return norm

    def clipped(self, gradient: Tensor) -> tuple[float, float]:
        """The norm of a mean, and what it is multiplied by where the job clips."""
        norm = float(torch.linalg.vector_norm(gradient))
        clip = self.job.optimizer.clip_norm
        return norm, 1.0 if clip is None else clip_scale(norm, clip)

    # State.

    def state(self) -> list[tuple[Form, Tensor]]:
        """Weights, buffers and the optimizer's state, as copies, flat."""
        return [
            (Form(name, tensor.dtype, tensor.numel()), tensor.detach().reshape(-1).to("cpu").clone())
            for name, tensor in self._state_tensors().items()
        ]

    def state_forms(self, step: int) -> list[Form]:
        """The vectors that the state of `step` has. An optimizer has none before its first step."""
        tensors = self._model_tensors()
        if step:
            tensors |= self._shapes_after_a_step()
        return [Form(name, tensor.dtype, tensor.numel()) for name, tensor in tensors.items()]

    def load(self, vectors: Mapping[str, Tensor], step: int) -> None:
        """Take over a state, of the form that state_forms() says."""
        for name, tensor in self._model_tensors().items():
            tensor.data.copy_(vectors[name].reshape(tensor.shape))
        shapes = self._shapes_after_a_step() if step else {}
        for number, (_, names, optimizer) in enumerate(self._groups):
            optimizer.state.clear()
            for name in names:
                prefix = f"optimizer.{number}.{name}."
                for key, like in shapes.items():
                    if key.startswith(prefix):
                        value = vectors[key].reshape(like.shape)
                        moved = value.to(self._device) if like.dim() else value
                        optimizer.state[self._named[name]][key.removeprefix(prefix)] = moved.clone()
        self.step = step
        self.forget()

    def weights_hash(self) -> str:
        """A hash of all trained weights: peers that have the same have the same bytes."""
        digest = hashlib.sha256()
        for one in self._parameters:
            digest.update(one.detach().to("cpu").contiguous().reshape(-1).numpy().tobytes())
        return digest.hexdigest()

    def evaluate(self, stop: Callable[[], bool] = lambda: False) -> dict[str, float]:
        """Loss and metrics over the held-out set; empty where that is empty, or `stop` has said so."""
        return self._evaluated(self.model, stop)

    def evaluation(self) -> Callable[[Callable[[], bool]], dict[str, float]]:
        """As evaluate() now, whenever it is called and by whichever thread: it has a copy of the model."""
        model = copy.deepcopy(self.model)
        return lambda stop: self._evaluated(model, stop)

    def _evaluated(self, model: nn.Module, stop: Callable[[], bool]) -> dict[str, float]:
        held_out = self.data.held_out
        spans = EvaluationBatches(len(held_out), self.job.micro_batch)
        if not len(spans):
            return {}
        named = {"loss": self._loss.measure, **{one.name: one.measure for one in self._metrics}}
        sums = dict.fromkeys(named, (0.0, 0.0))
        model.eval()
        with torch.no_grad(), self._autocast():
            for span in spans:
                if stop():
                    return {}
                with self._reading:
                    inputs, target = held_out.batch(span)
                positional, keywords = arguments(_to(inputs, self._device))
                output, wanted = model(*positional, **keywords), _to(target, self._device)
                for name, measure in named.items():
                    found = measure(output, wanted)
                    sums[name] = sums[name][0] + found.total, sums[name][1] + found.count
        means = {name: total / count for name, (total, count) in sums.items()}
        return {"loss": means["loss"], **{one.name: one.finish(means[one.name]) for one in self._metrics}}

    def _autocast(self) -> AbstractContextManager[object]:
        if self.job.precision == "float32":
            return nullcontext()
        return torch.autocast(self._device.type, torch.bfloat16)

    def _model_tensors(self) -> dict[str, Tensor]:
        parameters = {f"weights.{name}": one for name, one in self._named.items()}
        others = {**self._statistics, **self._counters}
        return parameters | {f"buffers.{name}": one for name, one in others.items()}

    def _state_tensors(self) -> dict[str, Tensor]:
        tensors = self._model_tensors()
        for number, (_, names, optimizer) in enumerate(self._groups):
            for name in names:
                tensors |= _of_state(number, name, optimizer, self._named[name])
        return tensors

    def _shapes_after_a_step(self) -> dict[str, Tensor]:
        """What state the optimizer keeps for each parameter, found by one step on copies that are thrown away."""
        found: dict[str, Tensor] = {}
        for number, (config, names, _) in enumerate(self._groups):
            for name in names:  # one at a time: the copies never take memory together
                copy = nn.Parameter(torch.zeros_like(self._named[name], device="cpu"))
                copy.grad = torch.zeros_like(copy)
                optimizer = build_optimizer(config, [(name, copy)])
                optimizer.step()
                shapes = _of_state(number, name, optimizer, copy)
                found |= {key: torch.empty_like(tensor) for key, tensor in shapes.items()}
        return found


def require_collaborative(job: Job, job_file: Path) -> None:
    """Raises InvalidInput unless the job can be trained collaboratively."""
    if job.mode != "collaborative":
        raise InvalidInput(
            "expected collaborative: other jobs are planned and run",
            path=str(job_file),
            key="mode",
            hint="add `mode: collaborative` and `target_batch: SAMPLES`, or use ravnest plan and ravnest run",
        )


def require_device(device: str) -> None:
    """Raises InvalidInput at --device where this machine cannot compute on it."""
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        said = next(iter(str(error).splitlines()), "")
        raise InvalidInput(f"cannot compute on {device!r}: {said}", key="--device") from None


def _of_state(number: int, name: str, optimizer: Optimizer, parameter: Tensor) -> dict[str, Tensor]:
    """What an optimizer keeps of a parameter, by the name under which it travels. Raises InvalidInput."""
    found: dict[str, Tensor] = {}
    for key, value in sorted(optimizer.state.get(parameter, {}).items()):
        if value is None:
            continue
        if not isinstance(value, Tensor) or value.dtype not in DTYPES.values():
            raise InvalidInput(
                f"keeps {key!r} as {getattr(value, 'dtype', type(value).__name__)}, which does not travel to joiners",
                key="optimizer.name",
            )
        found[f"optimizer.{number}.{name}.{key}"] = value
    return found


def _to(given: Any, device: torch.device) -> Any:
    if isinstance(given, Tensor):
        return given.to(device)
    if isinstance(given, Mapping):
        return {key: _to(value, device) for key, value in given.items()}
    if isinstance(given, Sequence):
        return tuple(_to(value, device) for value in given)
    return given
