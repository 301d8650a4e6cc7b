"""Forms across cuts that are shorter than int4, and not built: what a GPT on characters learns with them.

In: the GPT of part `cuts`, at the same cuts, with the same seeds and batches. Out: its held-out losses when activations
go forth in one form and gradients come back in another, with no staleness.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from experiments.harness.report import Part
from experiments.pipeline.tasks import SHAKESPEARE, Characters, Digits, Task
from experiments.wire.cuts import LEAST_RATIO, MOST, UPDATES, cut, last_modules, trained
from experiments.wire.forms import EXACT, losses_of, part_of
from experiments.wire.tried_forms import EXACT as EXACTLY
from experiments.wire.tried_forms import Tried, fed_back, largest, low_rank, normal_levels, whole_numbers

SEEDS = range(2)
BLOCK, RANK = 64, 8
WIDTH, CONTEXT, WINDOWS = 64, 32, 16


@dataclass(frozen=True)
class Pair:
    """The forms of activations and gradients. Those that remember are made anew for each of the cuts and seeds."""

    activations: Callable[[int], Tried]
    gradients: Callable[[int], Tried]

    @property
    def ratio(self) -> float:
        """How many times fewer bytes than float32, both ways together."""
        return 2 * EXACTLY.bits / (self.activations(0).bits + self.gradients(0).bits)


def _int4(_: int) -> Tried:
    return whole_numbers(7, BLOCK)


def _exact(_: int) -> Tried:
    return EXACTLY


def _by_chance(levels: int, seed: int) -> Tried:
    return whole_numbers(levels, BLOCK, torch.Generator().manual_seed(seed))


def _rank(_: int) -> Tried:
    return low_rank(RANK, WINDOWS * CONTEXT, WIDTH)


PAIRS: Mapping[str, Pair] = {
    EXACT: Pair(_exact, _exact),
    "int4, float32": Pair(_int4, _exact),
    "int4, int4": Pair(_int4, _int4),
    "int4, 2 bits": Pair(_int4, lambda _: normal_levels(2, BLOCK)),
    "int4, 7 levels by chance": Pair(_int4, partial(_by_chance, 3)),
    "int4, 3 levels by chance": Pair(_int4, partial(_by_chance, 1)),
    "int4, sign": Pair(_int4, lambda _: normal_levels(1, BLOCK)),
    "int4, an eighth": Pair(_int4, lambda _: largest(8, BLOCK)),
    "int4, an eighth fed back": Pair(_int4, lambda _: fed_back(largest(8, BLOCK))),
    "int4, rank 8": Pair(_int4, _rank),
    "3 bits, 2 bits": Pair(lambda _: normal_levels(3, BLOCK), lambda _: normal_levels(2, BLOCK)),
    "sign, sign": Pair(lambda _: normal_levels(1, BLOCK), lambda _: normal_levels(1, BLOCK)),
}


def run(*, quick: bool) -> Part:
    """Train in each pair of forms, with the same seeds."""
    torch.set_num_threads(1)
    task: Task = Characters(SHAKESPEARE, layers=4, width=WIDTH, context=CONTEXT, batch=WINDOWS)
    pairs, seeds, updates = PAIRS, SEEDS, UPDATES["characters"]
    if quick:
        task, seeds, updates = Digits(), SEEDS[:1], 2
        pairs = {name: pair for name, pair in PAIRS.items() if pair.gradients is not _rank}

    def train(_: str, task: Task, form: str, seed: int) -> float:
        model, pair = task.model(seed), pairs[form]
        return trained(task, model, _cuts(model, pair, seed), seed, updates)

    name = "digits" if quick else "characters"
    return part_of(
        "tried_cuts",
        "Across cuts: shorter forms that are not built",
        losses_of({name: task}, list(pairs), train, seeds),
        most=MOST,
        least_ratio=LEAST_RATIO,
        notes=[
            f"{task.name}; {updates} updates; {len(seeds)} seeds; as in part cuts. First the form of activations, then "
            f"that of gradients, in blocks of {BLOCK} numbers. Each claim is on the mean of its seeds.",
        ],
        ratios={form: pair.ratio for form, pair in pairs.items()},
    )


@contextmanager
def _cuts(model: nn.Module, pair: Pair, seed: int) -> Iterator[None]:
    with ExitStack() as cuts:
        for module in last_modules(model):
            cuts.enter_context(cut([module], pair.activations(seed).passes, pair.gradients(seed).passes))
        yield
