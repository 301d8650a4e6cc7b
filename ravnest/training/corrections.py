"""Corrections of an optimizer step for gradients that are older than the weights they change.

In: an optimizer with its gradients, and their staleness s (updates, a mean over the micro-batches). Out: one step with
another learning rate, momentum or direction. At s = 0 every correction is the optimizer alone, bit for bit.

look_ahead is the default. A gradient that is s updates late belongs to weights that the stage has left since. The
momentum m tells in which direction it has moved: so the step uses m as it will be k = LEAD · s updates later,

    m̃  = m_new + k · (m_new − m_old)
    β' = 1 − (1 − β) · min(1, (1 + LEAD) / (1 + k))     beyond s = 1 a longer momentum
    lr' = lr · max(1, s)^−1/2                           beyond s = 1 a smaller rate

It is weight prediction (SpecTrain, XPipe) and error feedback on the delayed update (Zmushko et al., 2026), written in
terms of the momentum: no copy of the weights and no state is added. The first line amplifies the newest gradient,
noise included, 1 + k times; the second bounds that by 1 + LEAD. Without the first, no momentum is stable beyond
lr · curvature = 1 at s = 1, where a synchronous momentum of 0.9 is stable up to 38. With it the bound there is 3, and
where much more than that is needed, training moves to weights of smaller curvature by itself.

discount is PipeMare's T1 (Yang et al., 2021): lr · s^−p, p falling from 1 to 0 over the first updates.
delay_adaptive is Koloskova et al. (2022): lr / s.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, get_args

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import SGD, Adam, Muon, NAdam, Optimizer

from ravnest.training.soap import SOAP

CorrectionName = Literal["none", "discount", "delay_adaptive", "look_ahead"]
CORRECTIONS: tuple[CorrectionName, ...] = get_args(CorrectionName)

LEAD = 2.0
"""How many updates look_ahead looks ahead for each update of staleness. The first predicts where the weights will be;
the second makes up for the lag of the momentum itself, which Nesterov's does already: there it is one less."""

DISCOUNTED_UPDATES = 500
"""The number of updates over which `discount` ends: staleness hurts most while the loss still falls fast."""

ONE_PASS = 0.9
"""While the lead is a smaller part than this of the step, both are taken in one pass, and m is recovered from what that
leaves, with a rounding error 1 / (1 − part) times as large."""

_WEIGHT = "momentum_weight"
"""The key of our scalar beside torch's state. It is a tensor, so that checkpoints hold it."""


class CorrectedStep(Protocol):
    """A corrected optimizer step."""

    def __call__(self, lr: float, staleness: float, update: int) -> None:
        """Make one step. `staleness`: in updates, a mean; `update` counts from 0. Gradients are not changed."""


def default_correction(optimizer: Optimizer) -> CorrectionName:
    """The correction for an optimizer: look_ahead if it knows the optimizer's momentum, else none."""
    return "look_ahead" if _lead_of(optimizer) is not None else "none"


def corrected(name: CorrectionName, optimizer: Optimizer) -> CorrectedStep:
    """The step of `optimizer` with the correction `name`.

    Raises ValueError for look_ahead when it does not know the optimizer's momentum.
    """
    if name == "look_ahead":
        lead = _lead_of(optimizer)
        if lead is None:
            raise ValueError(
                "correction: look_ahead needs the momentum of adam, adamw, muon, nadam, sgd or soap,"
                f" which {type(optimizer).__name__} with these arguments lacks"
            )
        return _LookAhead(optimizer, lead)
    factor = {"none": _no_discount, "discount": _discount, "delay_adaptive": _delay_adaptive}[name]

    def step(lr: float, staleness: float, update: int) -> None:
        _set(optimizer, lr=lr * factor(staleness, update))
        optimizer.step()

    return step


def _no_discount(staleness: float, update: int) -> float:
    return 1.0


def _discount(staleness: float, update: int) -> float:
    return float(max(1.0, staleness) ** -(1.0 - min(1.0, update / DISCOUNTED_UPDATES)))


def _delay_adaptive(staleness: float, update: int) -> float:
    return 1.0 / max(1.0, staleness)


class _LookAhead:
    def __init__(self, optimizer: Optimizer, lead: "_Lead") -> None:
        self._optimizer = optimizer
        self._lead = lead

    def __call__(self, lr: float, staleness: float, update: int) -> None:
        states = self._optimizer.state
        if staleness == 0 and not any(_WEIGHT in state for state in states.values()):
            _set(self._optimizer, lr=lr)
            self._optimizer.step()
        else:
            with torch.no_grad():
                self._lead(self._optimizer, lr * max(1.0, staleness) ** -0.5, staleness)


_Lead = Callable[[Optimizer, float, float], None]


def _lead_of(optimizer: Optimizer) -> _Lead | None:
    if isinstance(optimizer, NAdam | Adam | SOAP):  # AdamW is an Adam
        return _lead_adam if optimizer.defaults["betas"][0] > 0 else None
    if isinstance(optimizer, SGD):
        return _lead_sgd if optimizer.defaults["momentum"] > 0 else None
    if isinstance(optimizer, Muon):
        return _lead_muon if 0 < optimizer.defaults["momentum"] < 1 else None
    return None


def _lead_adam(optimizer: Optimizer, lr: float, staleness: float) -> None:
    """A step of Adam, AdamW, NAdam or SOAP with the momentum that it will have k updates later.

    torch corrects m's bias by 1 − β^step, which holds only for a constant β. The true weight ω of m follows
    ω ← β'·ω + 1 − β', and the rate makes up for the difference. While ω is small, k is reduced, so that the newest
    gradient never counts for more than it will later.
    """
    beta, beta2 = optimizer.defaults["betas"]
    nesterov = isinstance(optimizer, NAdam)
    lead = LEAD - nesterov
    k = lead * staleness
    longer = _longer(beta, k, lead)
    trained = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    if not trained:
        return
    first = optimizer.state[trained[0]]
    steps = float(first["step"]) if "step" in first else 0.0
    weight = float(first[_WEIGHT]) if _WEIGHT in first else 1 - beta**steps
    weight = longer * weight + 1 - longer
    steps += 1
    # NAdam corrects by the product of the coefficients that it really had.
    rate = lr if nesterov else lr * (1 - longer**steps) / weight
    share = (1 - longer) / weight  # of the newest gradient in m / ω
    ahead = min(k, max(0.0, (1 + lead) * (1 - beta) / share - 1))
    # Of the rate, by which newest − m / ω counts more; the first gradient of all is m / ω.
    part = ahead * share / (1 - share) if ahead > 0 and share < 1 else 0.0
    group = optimizer.param_groups[0]
    plain = not isinstance(optimizer, NAdam | SOAP) and not group["maximize"]
    if plain and 0 < part < ONE_PASS and (not group["weight_decay"] or group["decoupled_weight_decay"]):
        _step_once(optimizer, trained, longer, part, weight, lr / weight)
    else:
        _set(optimizer, lr=rate, betas=(longer, beta2))
        if isinstance(optimizer, SOAP):
            optimizer.step_ahead(lr * part, weight)
        else:
            optimizer.step()
            if part:
                _add_lead(optimizer, trained, weight, lr * part, 1 - beta2**steps)
    for p in trained:
        optimizer.state[p][_WEIGHT] = torch.tensor(weight, dtype=torch.float32)


def _step_once(
    optimizer: Optimizer, trained: list[Parameter], beta: float, part: float, weight: float, lr: float
) -> None:
    """Adam's or AdamW's step and the lead in one pass over the weights. `lr` is for m without correction for bias.

    The step and the lead have the same divisor, so together they are the step of a momentum (1 − part)·m + part·ω·g,
    which is one with another β and rate. Afterwards m is recovered by moving what that step leaves along g.
    """
    betas, decay = optimizer.defaults["betas"], optimizer.defaults["weight_decay"]
    total = 1 - part + part * weight
    other = (1 - part) * beta / total
    steps = float(optimizer.state[trained[0]]["step"]) + 1
    per_lr = total * (1 - other**steps)
    decays = decay * (1 - beta**steps) / per_lr  # at the rate that the step itself would have; `lr` may be 0
    _set(optimizer, lr=lr * per_lr, betas=(other, betas[1]), weight_decay=decays)
    optimizer.step()
    _set(optimizer, betas=betas, weight_decay=decay)
    for p in trained:
        optimizer.state[p]["exp_avg"].lerp_(p.grad, 1 - beta / other)


def _add_lead(optimizer: Optimizer, trained: list[Parameter], weight: float, lr: float, corrected: float) -> None:
    """Add the lead by itself, after a step. `corrected`: the divisor of the second moment."""
    group = optimizer.param_groups[0]
    for p in trained:
        state = optimizer.state[p]
        newest = _gradient(p, group).sub(state["exp_avg"], alpha=1 / weight)
        square: Tensor = state.get("max_exp_avg_sq", state["exp_avg_sq"])
        p.addcdiv_(newest, (square / corrected).sqrt_().add_(group["eps"]), value=-lr)


def _lead_sgd(optimizer: Optimizer, lr: float, staleness: float) -> None:
    """A step of SGD with the momentum that it will have k updates later.

    SGD's buffer is a sum, not a mean: a longer momentum makes it larger, and the rate is made as much smaller.
    """
    momentum = optimizer.defaults["momentum"]
    lead = LEAD - bool(optimizer.defaults["nesterov"])
    k = lead * staleness
    longer = _longer(momentum, k, lead)
    share = (1 - longer) / (1 - momentum)
    trained = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    for p in trained:
        state = optimizer.state[p]
        if state.get("momentum_buffer") is not None:
            before = float(state[_WEIGHT]) if _WEIGHT in state else 1.0
            state["momentum_buffer"].mul_(before / share)
    _set(optimizer, lr=lr * share, momentum=longer)
    optimizer.step()
    for p in trained:
        state, group = optimizer.state[p], optimizer.param_groups[0]
        buffer = state["momentum_buffer"]
        state[_WEIGHT] = torch.tensor(share, dtype=torch.float32)
        newest = _gradient(p, group) * (1 - group["dampening"])
        p.add_(newest + (longer - 1) * buffer, alpha=-lr * share * k / longer)


def _lead_muon(optimizer: Optimizer, lr: float, staleness: float) -> None:
    """A step of Muon with the momentum that it will have k updates later.

    Muon makes what it is given orthogonal, so that its length does not count. torch's own step is given m̃ in the place
    of its momentum, to take it as it is, and has its momentum back afterwards.
    """
    beta, nesterov = optimizer.defaults["momentum"], bool(optimizer.defaults["nesterov"])
    lead = LEAD - nesterov
    longer = _longer(beta, lead * staleness, lead)
    trained = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    momenta = []
    for p in trained:
        state = optimizer.state[p]
        before = float(state[_WEIGHT]) if _WEIGHT in state else float("momentum_buffer" in state)
        weight = longer * before + 1 - longer
        momenta.append(state.get("momentum_buffer", torch.zeros_like(p)).lerp_(p.grad, 1 - longer))
        share = (1 - longer) / weight  # of the newest gradient in m / ω, as for Adam
        ahead = min(lead * staleness, max(0.0, (1 + lead) * (1 - beta) / share - 1))
        part = ahead * share / (1 - share) if share < 1 else 0.0
        moved = (momenta[-1] / weight).lerp_(p.grad, part)
        state["momentum_buffer"] = p.grad.lerp(moved, longer) if nesterov else moved
        state[_WEIGHT] = torch.tensor(weight, dtype=torch.float32)
    _set(optimizer, lr=lr, momentum=1.0, nesterov=False)
    optimizer.step()
    _set(optimizer, momentum=beta, nesterov=nesterov)
    for p, momentum in zip(trained, momenta, strict=True):
        optimizer.state[p]["momentum_buffer"] = momentum


def _longer(momentum: float, k: float, lead: float) -> float:
    return 1 - (1 - momentum) * min(1.0, (1 + lead) / (1 + k))


def _gradient(p: Tensor, group: Mapping[str, Any]) -> Tensor:
    """The gradient as the momentum takes it: weight decay that is not decoupled is part of it."""
    assert p.grad is not None
    gradient = -p.grad if group["maximize"] else p.grad
    if group["weight_decay"] and not group.get("decoupled_weight_decay"):
        gradient = gradient.add(p, alpha=group["weight_decay"])
    return gradient


def _set(optimizer: Optimizer, **values: object) -> None:
    for group in optimizer.param_groups:
        group.update(values)
