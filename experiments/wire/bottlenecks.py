"""Models with a bottleneck at each of three cuts: what they learn, and what crosses the cuts.

In: a GPT on characters and a convolutional network on digits. Out: their held-out losses, beside those of the same
models without bottlenecks. The bottlenecks are those of a job (ravnest/splitting/bottlenecks.py); what crosses one is
packed and unpacked by the stage's own code, in one plain loop without staleness.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from experiments.harness.report import Part
from experiments.pipeline.tasks import Task
from experiments.wire.cuts import LEAST_RATIO, MOST, as_form, cut, size_of, trained
from experiments.wire.forms import EXACT, RATIOS, losses_of, part_of
from ravnest.splitting.bottlenecks import CHILD, insert_bottlenecks
from ravnest.training.precision import WireName


@dataclass(frozen=True)
class Narrowing:
    """A bottleneck of so many times fewer features, and the form in which they cross. Once fewer: no bottleneck."""

    times: int
    wire: WireName

    @property
    def ratio(self) -> float:
        """How many times fewer bytes than float32 without a bottleneck."""
        return self.times * RATIOS[self.wire]


NARROWINGS: Mapping[str, Narrowing] = {
    EXACT: Narrowing(1, "float32"),
    "a half": Narrowing(2, "float32"),
    "a quarter": Narrowing(4, "float32"),
    "an eighth": Narrowing(8, "float32"),
    "a quarter, int8": Narrowing(4, "int8"),
    "an eighth, int8": Narrowing(8, "int8"),
}
CUTS: Mapping[str, tuple[Sequence[str], int]] = {
    "characters": (("blocks.0", "blocks.1", "blocks.2"), -1),
    "digits": (("stem", "down", "last"), 1),
}
"""By task: the modules whose output is all that is alive behind them, and the dimension of its features."""


def run(*, quick: bool) -> Part:
    """Train each task with each bottleneck, with the same seeds."""
    size = size_of(quick=quick)

    def train(name: str, task: Task, form: str, seed: int) -> float:
        model, narrowing = task.model(seed), NARROWINGS[form]
        narrow = narrowed(model, narrowing.times, CUTS[name], next(task.batches(seed))[0], seed)
        return trained(task, model, cut(narrow, as_form(narrowing.wire)), seed, size.updates[name])

    losses = losses_of(size.tasks, list(NARROWINGS), train, size.seeds)
    return part_of(
        "bottlenecks",
        "Across cuts, through bottlenecks",
        losses,
        most=MOST,
        least_ratio=LEAST_RATIO,
        notes=[
            f"{size.said} Four stages, so three cuts, "
            "each in a bottleneck with a half, a quarter or an eighth of the features that are alive there.",
        ],
        ratios={form: narrowing.ratio for form, narrowing in NARROWINGS.items()},
    )


def narrowed(
    model: nn.Module, times: int, places: tuple[Sequence[str], int], inputs: Tensor, seed: int
) -> list[nn.Module]:
    """Insert bottlenecks of so many times fewer features, from the seed; returns the modules whose output is narrow."""
    if times == 1:
        return []
    names, dim = places
    features = _features(model, names, dim, inputs)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        insert_bottlenecks(
            model,
            [
                {"after": name, "features": count, "width": count // times, "dim": dim}
                for name, count in features.items()
            ],
        )
    return [model.get_submodule(f"{name}.{CHILD}.down") for name in names]


def _features(model: nn.Module, names: Sequence[str], dim: int, inputs: Tensor) -> dict[str, int]:
    found: dict[str, int] = {}
    handles = [
        model.get_submodule(name).register_forward_hook(
            lambda module, args, output, name=name: found.__setitem__(name, output.shape[dim])
        )
        for name in names
    ]
    model.eval()  # batch-norm's statistics stay as they are
    with torch.no_grad():
        model(inputs)
    model.train()
    for handle in handles:
        handle.remove()
    return found
