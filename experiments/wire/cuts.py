"""Activations and gradients that cross the cuts of a pipeline in shorter forms: what four stages learn then.

In: a GPT on characters and a convolutional network on digits, each cut in three places. Out: their held-out losses.
What crosses a cut is packed and unpacked by the stage's own code (ravnest/stage/boundary_tensors.py), within one plain
loop without staleness, so that nothing but the form differs between runs of one seed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from experiments.harness.report import Part
from experiments.pipeline.tasks import SHAKESPEARE, Characters, Digits, Task
from experiments.wire.forms import FORMS, SEEDS, losses_of, part_of
from ravnest.splitting import ValueSpec
from ravnest.stage.boundary_tensors import Crossing
from ravnest.training.precision import WireName, ring_wire

MOST, LEAST_RATIO = 0.01, 32.0
CLIP = 1.0
LR = 2e-3
UPDATES = {"characters": 600, "digits": 40}

Passed = Callable[[Tensor], Tensor]
"""What a receiver makes of a tensor that crosses a cut."""


def run(*, quick: bool) -> Part:
    """Train each task in each form, with the same seeds."""
    size = size_of(quick=quick)

    def train(name: str, task: Task, form: WireName, seed: int) -> float:
        model = task.model(seed)
        return trained(task, model, cut(last_modules(model), as_form(form)), seed, size.updates[name])

    losses = losses_of(size.tasks, FORMS, train, size.seeds)
    return part_of(
        "cuts",
        "Across cuts: activations and gradients",
        losses,
        most=MOST,
        least_ratio=LEAST_RATIO,
        notes=[
            f"{size.said} Four stages, so three cuts, "
            "through which activations and gradients go in the form; evaluations are exact, as in a run.",
        ],
    )


@dataclass(frozen=True)
class Size:
    """How much is trained: the tasks, the seeds of each, and by task the updates."""

    tasks: Mapping[str, Task]
    seeds: Sequence[int]
    updates: Mapping[str, int]

    @property
    def said(self) -> str:
        """It in words, with what all trainings share."""
        sizes = "; ".join(f"{task.name}; {self.updates[name]} updates" for name, task in self.tasks.items())
        return f"{sizes}; {len(self.seeds)} seeds. AdamW at {LR:g}, gradients clipped at {CLIP:g}."


def size_of(*, quick: bool) -> Size:
    """The size of a part. It also gives torch one thread, as all trainings here have."""
    torch.set_num_threads(1)
    if quick:
        return Size({"digits": Digits()}, SEEDS[:1], dict.fromkeys(UPDATES, 3))
    characters = Characters(SHAKESPEARE, layers=4, width=64, context=32, batch=16)
    return Size({"digits": Digits(), "characters": characters}, SEEDS, UPDATES)


def trained(task: Task, model: nn.Module, cuts: AbstractContextManager[object], seed: int, updates: int) -> float:
    """The held-out loss of the model after so many updates, which are made within `cuts`."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    with cuts:
        for inputs, target in islice(task.batches(seed), updates):
            optimizer.zero_grad()
            task.loss(model(inputs), target).backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
    return task.held_out_loss(model, whole=True)


def as_form(form: WireName) -> Passed:
    """What a receiver makes of a tensor in this form of a stage."""
    return partial(_passed, form)


@contextmanager
def cut(modules: Iterable[nn.Module], forth: Passed, back: Passed | None = None) -> Iterator[None]:
    """Within it, what leaves these modules crosses a cut, and its gradient comes back: as `forth` does, or `back`."""
    handles = [module.register_forward_hook(_crosses(forth, back or forth)) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def last_modules(model: nn.Module) -> Sequence[nn.Module]:
    """The last module of each of the first three stages."""
    blocks = getattr(model, "blocks", None)
    if blocks is not None:
        return [blocks[len(blocks) * stage // 4 - 1] for stage in (1, 2, 3)]
    return [model.get_submodule(name) for name in ("stem", "second", "down")]


def _crosses(forth: Passed, back: Passed) -> Any:
    def hook(module: nn.Module, args: object, output: Tensor) -> Tensor:
        crossed: Tensor = _Cut.apply(output, forth, back)  # type: ignore[no-untyped-call]
        return crossed

    return hook


class _Cut(torch.autograd.Function):
    """A cut: what goes forth and what comes back is packed and unpacked."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, forth: Passed, back: Passed) -> Tensor:
        ctx.back = back
        return forth(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.back(gradient), None, None


def _passed(form: WireName, value: Tensor) -> Tensor:
    spec = ValueSpec("value", torch.float32, (None, *value.shape[1:]), needs_gradient=True)
    crossing = Crossing([spec], ring_wire(form), "c0.s0", "values")
    (received,) = crossing.unpack(crossing.pack([value.contiguous()]))
    return received
