"""Models with a bottleneck at each of three cuts: what they learn, and what crosses the cuts.

In: a GPT on characters and a convolutional network on digits. Out: their held-out losses, beside those of the same
models without bottlenecks. The bottlenecks are those of a job (ravnest/splitting/bottlenecks.py); what crosses one is
packed and unpacked by the stage's own code, in one plain loop without staleness.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor, nn

from experiments.harness.report import Part
from experiments.pipeline.tasks import SHAKESPEARE, Characters, Digits, Task
from experiments.wire.cuts import CLIP, LEAST_RATIO, LR, MOST, UPDATES, cut
from experiments.wire.forms import EXACT, RATIOS, SEEDS, losses_of, part_of
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
    torch.set_num_threads(1)
    tasks: dict[str, Task] = {"digits": Digits()}
    if not quick:
        tasks["characters"] = Characters(SHAKESPEARE, layers=4, width=64, context=32, batch=16)
    seeds = SEEDS[:1] if quick else SEEDS
    updates = dict.fromkeys(UPDATES, 3) if quick else UPDATES
    losses = losses_of(
        tasks,
        list(NARROWINGS),
        lambda name, task, form, seed: trained(task, NARROWINGS[form], CUTS[name], seed, updates[name]),
        seeds,
    )
    sizes = "; ".join(f"{task.name}; {updates[name]} updates" for name, task in tasks.items())
    return part_of(
        "bottlenecks",
        "Across cuts, through bottlenecks",
        losses,
        most=MOST,
        least_ratio=LEAST_RATIO,
        notes=[
            f"{sizes}; {len(seeds)} seeds. AdamW at {LR:g}, gradients clipped at {CLIP:g}. Four stages, so three cuts, "
            "each in a bottleneck with a half, a quarter or an eighth of the features that are alive there.",
        ],
        ratios={form: narrowing.ratio for form, narrowing in NARROWINGS.items()},
    )


def trained(task: Task, narrowing: Narrowing, places: tuple[Sequence[str], int], seed: int, updates: int) -> float:
    """The held-out loss after so many updates."""
    model = task.model(seed)
    narrow = narrowed(model, narrowing.times, places, next(task.batches(seed))[0], seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    with cut(narrow, narrowing.wire):
        for inputs, target in islice(task.batches(seed), updates):
            optimizer.zero_grad()
            task.loss(model(inputs), target).backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
    return task.held_out_loss(model, whole=True)


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
