"""LAMB: Adam whose step in each layer is a part of its weights' length (You et al., 2020), for large batches.

With Adam's moments m and v without their bias and weight decay λ, the step of a parameter w at the rate η is

    r = m / (√v + ε) + λ w,        w ← w − η · φ · r,        φ = ‖w‖ / ‖r‖, and 1 where either norm is 0

In: parameters with gradients. Out: the parameters after one step. The norm of a weight counts up to `max_norm`.
"""

from collections.abc import Callable, Iterable
from typing import overload

import torch
from torch import Tensor
from torch.optim import Optimizer


class LAMB(Optimizer):
    """The LAMB optimizer, with the interface of torch.optim. Biases and gains get a step of their own, too."""

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        max_norm: float = 10.0,
    ) -> None:
        """Raises ValueError for a number out of its range."""
        for value in betas:
            if not 0.0 <= value < 1.0:
                raise ValueError(f"betas must be in [0, 1), not {value}")
        for name, value in (("eps", eps), ("weight_decay", weight_decay)):
            if value < 0:
                raise ValueError(f"{name} must be at least 0, not {value}")
        if not max_norm > 0:
            raise ValueError(f"max_norm must be above 0, not {max_norm}")
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "max_norm": max_norm}
        )

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Make one update of all parameters that have a gradient; returns what `closure` does, if there is one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            beta, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["step"] = torch.tensor(0.0)
                    state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
                state["step"] += 1
                count = float(state["step"])
                state["exp_avg"].lerp_(p.grad, 1 - beta)
                state["exp_avg_sq"].mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
                scale = (state["exp_avg_sq"] / (1 - beta2**count)).sqrt_().add_(group["eps"])
                direction = state["exp_avg"] / (1 - beta**count) / scale
                direction.add_(p, alpha=group["weight_decay"])
                weight, length = float(p.norm().clamp(max=group["max_norm"])), float(direction.norm())
                trust = weight / length if weight and length else 1.0
                p.add_(direction, alpha=-group["lr"] * trust)
        return loss
