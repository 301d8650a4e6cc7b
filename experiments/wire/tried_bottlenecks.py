"""Bottlenecks on one subspace, whose stages read the characters again: what a GPT learns with them.

In: the GPT of part `bottlenecks`, or the one of rereading.py. Out: held-out losses, beside those of a last stage to
which nothing but the ids crosses: a way that does no better carries nothing. All are trained for longer than in part
`bottlenecks`, so that depth counts. What crosses a bottleneck is packed and unpacked by the stage's own code, in one
plain loop without staleness; ids cross as they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from experiments.harness.report import ROOT, Part
from experiments.pipeline.tasks import Characters, Task
from experiments.wire.bottlenecks import CUTS
from experiments.wire.cuts import LEAST_RATIO, MOST, as_form, cut, size_of, trained
from experiments.wire.forms import EXACT, RATIOS, losses_of, part_of
from experiments.wire.rereading import CARRIED, ID_BITS, RereadingGPT
from ravnest.splitting.bottlenecks import CHILD, insert_bottlenecks
from ravnest.training.precision import WireName

FEATURES, BLOCKS, HEADS, CONTEXT = 64, 4, 4, 32


@dataclass(frozen=True)
class Narrow:
    """A bottleneck of `width` of FEATURES features at each cut, and the form in which they cross."""

    width: int = FEATURES
    """FEATURES: no bottleneck; 0: nothing crosses but the ids."""
    wire: WireName = "float32"
    alike: bool = False
    """All of them begin as the projection on one subspace, and not each on another."""
    rereads: bool = False

    @property
    def narrows(self) -> bool:
        """Whether there are bottlenecks."""
        return 0 < self.width < FEATURES

    @property
    def ratio(self) -> float:
        """How many times fewer bytes than float32 without a bottleneck, both ways together."""
        each = 32 / RATIOS[self.wire]
        return 2 * 32 * FEATURES / (2 * self.width * each + (ID_BITS if self.rereads else 0))


UPDATES, SEEDS = 3000, range(3)
WAYS: Mapping[str, Narrow] = {
    EXACT: Narrow(),
    "a quarter, alike": Narrow(16, alike=True),
    "none, rereads": Narrow(rereads=True),
    "14 of 64, int4, rereads": Narrow(14, "int4", alike=True, rereads=True),
    "7 of 64, int8, rereads": Narrow(7, "int8", alike=True, rereads=True),
    "ids alone": Narrow(0, rereads=True),
}


def run(*, quick: bool) -> Part:
    """Train in each way, with the same seeds."""
    name, size = "characters", size_of(quick=False)
    task, updates, seeds = size.tasks[name], UPDATES, SEEDS
    if quick:
        task, updates, seeds = Characters(ROOT / "README.md", BLOCKS, FEATURES, CONTEXT, 4), 2, seeds[:1]

    def train(_: str, task: Task, way: str, seed: int) -> float:
        return loss_of(task, WAYS[way], seed, updates)

    return part_of(
        "tried_bottlenecks",
        "Across cuts, through bottlenecks behind which stages read the characters again",
        losses_of({name: task}, list(WAYS), train, seeds),
        most=MOST,
        least_ratio=LEAST_RATIO,
        notes=[
            f"{task.name}; {updates} updates; {len(seeds)} seeds; as in part bottlenecks but for its 600 updates. "
            "Rereads: ids cross the cuts, too, a byte each on its way forth, and each stage adds an embedding of its "
            f"own of token and position to {CARRIED:g} of what crosses. Alike, as all that reread are: all bottlenecks "
            "begin as the projection on one random subspace. Ids alone: the last stage trains by itself.",
        ],
        ratios={name: way.ratio for name, way in WAYS.items()},
    )


def loss_of(task: Task, way: Narrow, seed: int, updates: int) -> float:
    """The held-out loss of the GPT on characters after so many updates in one way."""
    model = model_of(task.model(seed), way, seed)
    narrow = [f"{block}.{CHILD}.down" for block in CUTS["characters"][0]] if way.narrows else []
    cuts = cut([model.get_submodule(one) for one in narrow], as_form(way.wire))
    return trained(task, model, cuts, seed, updates)


def model_of(plain: nn.Module, way: Narrow, seed: int) -> nn.Module:
    """The model that is trained in a way, with the initial weights of `plain` where it has the same ones."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = plain
        if way.rereads:
            model = RereadingGPT(plain, CARRIED if way.width else 0.0)
        if way.narrows:
            narrow = {"features": FEATURES, "width": way.width, "dim": -1}
            every = [{"after": name, **narrow} for name in CUTS["characters"][0]]
            for together in [every] if way.alike else [[one] for one in every]:  # those of a job are alike
                insert_bottlenecks(model, together)
    return model
