"""One expert that a host has: its module, its optimizer and how many updates it has had.

In: batches of several callers, and gradients. Out: outputs, gradients of inputs, and the state for a copy or a file. It
belongs to the host's thread. The forward is computed again for a backward, with the weights of now: the host keeps
nothing between the two, whoever calls and never comes back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ravnest.errors import InvalidInput
from ravnest.experts.claims import Kept
from ravnest.experts.config import ExpertsConfig
from ravnest.experts.grid import MOST_UPDATES
from ravnest.training.optimizer import build_optimizer, clip_scale, learning_rate

_WEIGHTS, _BUFFERS, _OPTIMIZER = "weights.", "buffers.", "optimizer."

_NEVER_NEGATIVE = {
    *("step", "exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum", "exp_inf", "acc_delta", "step_size", "mu_product"),
    *("row_var", "col_var", "variance"),
}
"""What optimizers count, and means of squares, by torch's names and those of lamb and soap."""

MOST_NORM = 1e15
"""A gradient of a larger norm is refused: an optimizer squares it, and an expert that has once overflowed is lost."""


class NotFinite(ArithmeticError):
    """A batch's gradient is not finite, or so large that the expert would not be. The expert is unchanged."""


class HostedExpert:
    """Computes and learns."""

    def __init__(self, module: nn.Module, config: ExpertsConfig) -> None:
        self.module = module
        self.updates = 0
        self.term = 0
        self._config = config
        self._names = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
        self._parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._optimizer = build_optimizer(config.optimizer, zip(self._names, self._parameters, strict=True))

    @property
    def kept(self) -> Kept:
        return Kept(self.term, self.updates)

    def forward(self, samples: Tensor, *, training: bool) -> Tensor:
        """The outputs of a batch."""
        self.module.train(training)
        with torch.inference_mode():
            output: Tensor = self.module(samples)
        return output

    def backward(self, samples: Tensor, gradient: Tensor, requests: int) -> Tensor:
        """Make one update by the gradient of a batch's outputs, and return that of its inputs.

        The update is by the mean over the `requests` in the batch, so that the learning rate means the same however
        requests come together. Raises NotFinite, with nothing changed.
        """
        self.module.train(True)
        inputs = samples.detach().requires_grad_()
        with torch.enable_grad():
            output: Tensor = self.module(inputs)
            found = torch.autograd.grad(output, [inputs, *self._parameters], gradient, allow_unused=True)
        of_inputs, of_weights = found[0], found[1:]
        assert of_inputs is not None
        norm = math.sqrt(sum(float(one.pow(2).sum()) for one in of_weights if one is not None)) / requests
        if not norm <= MOST_NORM or not bool(of_inputs.isfinite().all()):  # NaN is at most nothing
            raise NotFinite(f"the norm of the gradient is {norm}")
        clip = self._config.optimizer.clip_norm
        scale = (1.0 if clip is None else clip_scale(norm, clip)) / requests
        for parameter, one in zip(self._parameters, of_weights, strict=True):
            parameter.grad = None if one is None else one.mul_(scale)
        optimizer = self._config.optimizer
        rate = learning_rate(optimizer.lr, optimizer.schedule, self.updates, None)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        for parameter in self._parameters:
            parameter.grad = None
        self.updates = min(self.updates + 1, MOST_UPDATES)
        return of_inputs

    def state(self) -> dict[str, Tensor]:
        """Everything that the expert has learned, by name: copies, which do not change any more."""
        tensors = self._own()
        for number, values in self._optimizer.state_dict()["state"].items():
            for key, value in values.items():
                tensors[f"{_OPTIMIZER}{number}.{key}"] = torch.as_tensor(value)
        return {name: one.detach().clone() for name, one in tensors.items()}

    def restore(self, state: Mapping[str, Tensor], kept: Kept) -> None:
        """Go on from a state of the same kind of expert. Raises InvalidInput for any other, with nothing changed."""
        own = self._own()
        given = {name: one for name, one in state.items() if not name.startswith(_OPTIMIZER)}
        wrong = sorted(own.keys() ^ given.keys())
        wrong = wrong or [name for name, one in own.items() if not _fits(given[name], one)]
        if wrong:
            raise InvalidInput("the state is of another kind of expert", key=wrong[0])
        of_optimizer: dict[int, dict[str, Tensor]] = {}
        for name, one in state.items():
            if name.startswith(_OPTIMIZER):
                number, _, key = name.removeprefix(_OPTIMIZER).partition(".")
                if not number.isdecimal() or int(number) >= len(self._parameters) or not key:
                    raise InvalidInput("the optimizer has no such state", key=name)
                of_optimizer.setdefault(int(number), {})[key] = one.clone()
        self._require_whole(of_optimizer)
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": of_optimizer, "param_groups": groups})
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(given[name])
        self.updates, self.term = kept.updates, kept.term

    def _require_whole(self, of_optimizer: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Raises InvalidInput unless each parameter has what this optimizer keeps of one, or none has anything.

        Another host says what is kept. A count or a mean of squares below 0 would make the next update's weights NaN.
        """
        if not of_optimizer:
            return  # no update was made yet
        for number, parameter in enumerate(self._parameters):
            copy = nn.Parameter(torch.zeros_like(parameter))
            copy.grad = torch.zeros_like(copy)
            optimizer = build_optimizer(self._config.optimizer, [(self._names[number], copy)])
            optimizer.step()
            kept = {key: torch.as_tensor(value) for key, value in optimizer.state.get(copy, {}).items()}
            given = of_optimizer.get(number, {})
            wrong = kept.keys() ^ given.keys() or {key for key, one in kept.items() if not _fits(given[key], one)}
            wrong = wrong or {key for key in kept.keys() & _NEVER_NEGATIVE if bool((given[key] < 0).any())}
            if wrong:
                raise InvalidInput("the state is of another optimizer", key=f"{_OPTIMIZER}{number}.{min(wrong)}")

    def _own(self) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = {_WEIGHTS + name: one for name, one in self.module.named_parameters()}
        return tensors | {_BUFFERS + name: one for name, one in self.module.named_buffers()}


def _fits(given: Tensor, own: Tensor) -> bool:
    return given.shape == own.shape and given.dtype == own.dtype and bool(given.isfinite().all())
