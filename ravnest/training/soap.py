"""SOAP: Adam in the eigenbasis of a matrix's gradients (Vyas et al., 2024).

The gradient of a matrix is rotated into that basis before Adam's second moment scales it, and back. In the basis the
curvature is nearly diagonal, so that only the directions of large curvature, which a delay makes unstable, are damped:
this is what "basis rotation" does for asynchronous pipelines (Jung et al., 2026). It costs two square matrices for each
side, and three products with a square matrix of each side at each step: the momentum is kept in the basis, so that it
need not be turned, but when the basis changes; a correction for stale gradients is turned back with it.
"""

from collections.abc import Callable, Iterable
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim import Optimizer

SIDES = ("left", "right")


class SOAP(Optimizer):
    """The SOAP optimizer, with the interface of torch.optim.

    A parameter of two or more dimensions is a matrix of its first dimension and the others; other parameters are
    trained by Adam. Of a matrix both sides are rotated, or the smaller one (where they are equal, the left), but none
    that is longer than `max_side`. Weight decay is decoupled. A p × q matrix has 2·p·q elements of state, and 2·p² for
    a rotated side of length p, whose products take 6·p²·q operations a step.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 3e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        sides: str = "both",
        basis_beta: float = 0.95,
        basis_every: int = 10,
        max_side: int = 2048,
        maximize: bool = False,
    ) -> None:
        """`sides`: both or smaller; `basis_beta`: decay of the mean of the gradients' products; `basis_every`: updates
        between new bases.

        Raises ValueError for a number out of its range, and for other sides.
        """
        for name, value in (("betas", betas[0]), ("betas", betas[1]), ("basis_beta", basis_beta)):
            if not 0.0 <= value < 1.0:
                raise ValueError(f"{name} must be in [0, 1), not {value}")
        for name, value in (("eps", eps), ("weight_decay", weight_decay)):
            if value < 0:
                raise ValueError(f"{name} must be at least 0, not {value}")
        for name, least, value in (("basis_every", 1, basis_every), ("max_side", 0, max_side)):
            if value < least or value != int(value):
                raise ValueError(f"{name} must be a whole number of at least {least}, not {value}")
        if sides not in ("both", "smaller"):
            raise ValueError(f"sides must be both or smaller, not {sides}")
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "basis_beta": basis_beta}
        turning = {"sides": sides, "basis_every": int(basis_every), "max_side": int(max_side)}
        super().__init__(params, {**defaults, **turning, "maximize": maximize, "decoupled_weight_decay": True})
        self._ahead = 0.0, 1.0

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
            for p in group["params"]:
                if p.grad is not None:
                    self._step(p, -p.grad if group["maximize"] else p.grad, group)
        return loss

    def step_ahead(self, lr: float, weight: float) -> None:
        """Make one update, and go on by `lr` along the newest gradient less the momentum divided by `weight`."""
        self._ahead = lr, weight
        self.step()
        self._ahead = 0.0, 1.0

    def _step(self, p: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state, (beta, beta2) = self.state[p], group["betas"]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["turned_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
        if "exp_avg" in state:  # of a checkpoint that kept the momentum as it was before it is turned
            state["turned_avg"] = self._turn(p, state.pop("exp_avg"))
        state["step"] += 1
        self._learn_basis(p, gradient, group)
        turned, average = self._turn(p, gradient), state["turned_avg"]
        average.lerp_(turned, 1 - beta)
        state["exp_avg_sq"].mul_(beta2).addcmul_(turned, turned, value=1 - beta2)
        steps, (lr, weight) = float(state["step"]), self._ahead
        scale = (state["exp_avg_sq"] / (1 - beta2**steps)).sqrt_().add_(group["eps"])
        moved = average * (group["lr"] / (1 - beta**steps) - lr / weight)
        if lr:
            moved.add_(turned, alpha=lr)
        p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(self._turn(p, moved.div_(scale), back=True))

    def _learn_basis(self, p: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        """Update the eigenvectors of the gradients' products: exactly at first, then by a step of power iteration."""
        if p.dim() < 2:
            return
        state = self.state[p]
        matrix = gradient.reshape(p.shape[0], -1)
        anew = int(state["step"]) % group["basis_every"] == 0
        average = self._turn(p, state["turned_avg"], back=True) if anew else None
        for side in _rotated(matrix, group):
            product = matrix @ matrix.T if side == "left" else matrix.T @ matrix
            basis = f"{side}_basis"
            if side not in state:
                state[side] = product
                state[basis] = torch.linalg.eigh(product)[1]
            else:
                state[side].lerp_(product, 1 - group["basis_beta"])
                if anew:
                    state[basis] = torch.linalg.qr(state[side] @ state[basis])[0]
        if average is not None:
            state["turned_avg"].copy_(self._turn(p, average))

    def _turn(self, p: Tensor, x: Tensor, *, back: bool = False) -> Tensor:
        """`x` rotated into p's basis, or back, as a new tensor."""
        if p.dim() < 2:
            return x.clone()
        left, right = (self.state[p].get(f"{side}_basis") for side in SIDES)
        matrix = x.reshape(p.shape[0], -1)
        if left is not None:
            matrix = (left if back else left.T) @ matrix
        if right is not None:
            matrix = matrix @ (right.T if back else right)
        return matrix.reshape(p.shape).clone() if left is None and right is None else matrix.reshape(p.shape)


def _rotated(matrix: Tensor, group: dict[str, Any]) -> list[str]:
    """The sides of a matrix that are rotated."""
    lengths = dict(zip(SIDES, matrix.shape, strict=True))
    asked = SIDES if group["sides"] == "both" else (min(SIDES, key=lengths.__getitem__),)
    return [side for side in asked if 1 < lengths[side] <= group["max_side"]]
