"""What the optimizer's state of a stage that takes over is worth: a new one, others' averaged, a shadowed one.

Three clusters train a small GPT on characters, each with AdamW, and average what they have changed after every ten
updates. In the middle of a round one cluster loses one of its four stages: all of it goes back to the anchor, the three
other stages keep their optimizer's state, and the fourth gets it in one of these ways: as it was (which nobody can);
new; the mean of the other members' at the last round; another member's; its own of some rounds before, as a spare would
hold it that is sent it now and then. Everything else is the same, sample by sample.
"""

import copy
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

import torch
from torch import Tensor, nn

from experiments.harness.report import ROOT, Cell, Claim, Panel, Part, Series, Table
from experiments.pipeline.quality import margin
from experiments.pipeline.tasks import SHAKESPEARE, Characters, Task

MOST = 0.005
"""So much higher may a new state leave the loss, of the loss: half a percent."""
CLUSTERS, STAGES, ROUND_UPDATES, LR, CLIP = 3, 4, 10, 2e-3, 1.0
OLD_ROUNDS = 4
EXACT, FRESH, MEAN, OTHER, OLD = "as it was", "new", "others' mean", "another's", f"its own, {OLD_ROUNDS} rounds old"
HOW = (EXACT, FRESH, MEAN, OTHER, OLD)
BYTES: Mapping[str, tuple[float, float]] = {
    EXACT: (8, 0),
    FRESH: (0, 0),
    MEAN: (0, 8),
    OTHER: (8, 0),
    OLD: (0, 8 / OLD_ROUNDS),
}
"""Bytes a parameter of the stage that are sent: when it is lost, and in each round to whoever might take over."""

State = list[dict[str, Tensor]]


@dataclass(frozen=True)
class Size:
    """How much is trained. A round's number counts from 1."""

    task: Task
    seeds: Sequence[int]
    before: int
    """Rounds before the one loss."""
    heard: Sequence[int]
    """So many rounds after the one in which the stage was lost the anchor is judged."""
    every: int
    """The other training loses a stage in each round of this number."""
    rounds: int


@dataclass(frozen=True)
class Lost:
    """A stage that is lost in a round, and where its successor has its optimizer's state from."""

    cluster: int
    stage: int
    how: str


class Fleet:
    """Clusters that average. The same seed and losses give the same weights."""

    def __init__(self, task: Task, seed: int) -> None:
        self._task, self._seed = task, seed
        self.anchor = task.model(seed)
        self._models = [task.model(seed) for _ in range(CLUSTERS)]
        self._optimizers = [torch.optim.AdamW(each.parameters(), lr=LR, fused=True) for each in self._models]
        self._spans = spans([each.numel() for each in self.anchor.parameters()])
        self._saved: list[list[State]] = []
        """By round, the latest last: each cluster's optimizer state at its end."""
        self._round = 0

    def round(self, lost: Lost | None = None) -> None:
        """Train a round, and average."""
        self._round += 1
        before = [each.detach().clone() for each in self.anchor.parameters()]
        counted = [ROUND_UPDATES] * CLUSTERS
        for index in range(CLUSTERS):
            number = (self._seed * CLUSTERS + index) * 10_000 + self._round
            batches = self._task.batches(number)
            if lost is not None and lost.cluster == index:
                half = ROUND_UPDATES // 2
                self._train(index, islice(batches, half))
                _put(self._models[index], before)
                self._take_over(lost)
                counted[index] = ROUND_UPDATES - half
            self._train(index, islice(batches, counted[index]))
        shares = [count / sum(counted) for count in counted]
        for at, parameter in enumerate(self.anchor.parameters()):
            parts = [list(model.parameters())[at].detach() - before[at] for model in self._models]
            parameter.data.add_(torch.stack([s * p for s, p in zip(shares, parts, strict=True)]).sum(0))
        for model in self._models:
            _put(model, list(self.anchor.parameters()))
        self._saved = [*self._saved[-OLD_ROUNDS:], [state_of(each) for each in self._optimizers]]

    def _train(self, index: int, batches: "islice[tuple[Tensor, Tensor]]") -> None:
        model, optimizer = self._models[index], self._optimizers[index]
        for inputs, target in batches:
            optimizer.zero_grad()
            self._task.loss(model(inputs), target).backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()

    def _take_over(self, lost: Lost) -> None:
        optimizer, others = self._optimizers[lost.cluster], [i for i in range(CLUSTERS) if i != lost.cluster]
        new: State | None = None
        if lost.how == MEAN:
            new = mean_of([self._saved[-1][other] for other in others])
        elif lost.how == OTHER:
            new = state_of(self._optimizers[others[0]])
        elif lost.how == OLD:
            new = self._saved[0][lost.cluster]
        if lost.how == EXACT:
            return
        for at in range(*self._spans[lost.stage]):
            parameter = optimizer.param_groups[0]["params"][at]
            if new is None:
                optimizer.state.pop(parameter, None)
            else:
                optimizer.state[parameter] = {key: value.clone() for key, value in new[at].items()}


def spans(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Return the half-open spans of parameters of the stages, each with about as many numbers."""
    total, marks, seen = sum(sizes), [0], 0
    for at, size in enumerate(sizes):
        seen += size
        if len(marks) < STAGES and seen * STAGES >= len(marks) * total:
            marks.append(at + 1)
    return list(pairwise([*marks, len(sizes)]))


def state_of(optimizer: torch.optim.Optimizer) -> State:
    """Return a copy of an optimizer's state, parameter by parameter."""
    params = optimizer.param_groups[0]["params"]
    return [{key: value.clone() for key, value in optimizer.state[each].items()} for each in params]


def mean_of(states: Sequence[State]) -> State:
    """Return the mean of several states."""
    return [
        {key: torch.stack([each[at][key] for each in states]).mean(0) for key in states[0][at]}
        for at in range(len(states[0]))
    ]


def _put(model: nn.Module, values: Sequence[Tensor]) -> None:
    for parameter, value in zip(model.parameters(), values, strict=True):
        parameter.data.copy_(value)


def size_of(*, quick: bool) -> Size:
    """The size of the part."""
    if quick:
        text = ROOT / "docs" / "glossary.md"
        return Size(Characters(text, layers=2, width=16, context=16, batch=4), range(2), 5, (0, 1), 2, 6)
    task = Characters(SHAKESPEARE, layers=2, width=32, context=32, batch=8)
    return Size(task, range(5), 12, (0, 1, 2, 4), 3, 15)


def measure(*, quick: bool) -> Part:
    """Lose one stage, and lose one again and again, with each kind of state."""
    torch.set_num_threads(1)
    size = size_of(quick=quick)
    once: dict[str, list[list[float]]] = {how: [] for how in HOW}
    often: dict[str, list[float]] = {how: [] for how in HOW}
    for seed in size.seeds:
        fleet = Fleet(size.task, seed)
        for _ in range(size.before):
            fleet.round()
        for how in HOW:
            once[how].append(_after_one(copy.deepcopy(fleet), size, seed, how))
            often[how].append(_after_many(Fleet(size.task, seed), size, how))
        print(f"  seed {seed}: {often[EXACT][-1]:.4f} as it was, {often[FRESH][-1]:.4f} new", file=sys.stderr)
    return _part(size, once, often)


def _after_one(fleet: Fleet, size: Size, seed: int, how: str) -> list[float]:
    found, lost = [], Lost(seed % CLUSTERS, seed % STAGES, how)
    for number in range(max(size.heard) + 1):
        fleet.round(lost if number == 0 else None)
        if number in size.heard:
            found.append(size.task.held_out_loss(fleet.anchor, whole=False))
    return found


def _after_many(fleet: Fleet, size: Size, how: str) -> float:
    for number in range(1, size.rounds + 1):
        turn = number // size.every
        lost = Lost(turn % CLUSTERS, (turn // 2) % STAGES, how)
        fleet.round(lost if number % size.every == 0 and number > OLD_ROUNDS else None)
    return size.task.held_out_loss(fleet.anchor, whole=False)


def _above(losses: Sequence[float], exact: Sequence[float]) -> tuple[float, float]:
    """By how much more these losses are, as a share, on the mean over seeds, and half its 95 % interval."""
    apart = [(one - base) / base for one, base in zip(losses, exact, strict=True)]
    return statistics.fmean(apart), margin(apart)


def _part(size: Size, once: Mapping[str, Sequence[Sequence[float]]], often: Mapping[str, Sequence[float]]) -> Part:
    by_moment = {
        how: [
            _above([seed[at] for seed in losses], [seed[at] for seed in once[EXACT]]) for at in range(len(size.heard))
        ]
        for how, losses in once.items()
    }
    repeated = {how: _above(losses, often[EXACT]) for how, losses in often.items()}
    mean, half = repeated[FRESH]
    updates = [ROUND_UPDATES // 2 + ROUND_UPDATES * rounds for rounds in size.heard]

    def said(mean: float, half: float) -> str:
        return f"{mean:+.2%} ± {half:.2%}"

    rows: list[list[Cell]] = [
        [how, *BYTES[how], *(said(*each) for each in by_moment[how]), said(*repeated[how])]
        for how in HOW
        if how != EXACT
    ]
    losses = (size.rounds - OLD_ROUNDS - 1) // size.every + 1
    return Part(
        name="optimizer_states",
        title="The optimizer's state of a stage that takes over",
        claims=[
            Claim(
                "a new one",
                f"held-out loss where a stage is lost every {size.every * ROUND_UPDATES} updates, and its successor has"
                " a new state, above that with the state as it was",
                f"at most {MOST:.1%}",
                said(mean, half),
                mean + half <= MOST,
            )
        ],
        tables=[
            Table(
                "Held-out loss above that with the state as it was; means over paired seeds, and their 95 % intervals",
                (
                    "optimizer's state",
                    "bytes a parameter at the loss",
                    "in each round",
                    *(f"one loss, {count} updates later" for count in updates),
                    "a loss again and again",
                ),
                rows,
            )
        ],
        panels=[
            Panel(
                "optimizer's state after a loss",
                "updates after the loss",
                "held-out loss above the exact state's",
                [
                    Series(
                        how,
                        updates,
                        [mean for mean, _ in by_moment[how]],
                        [mean - half for mean, half in by_moment[how]],
                        [mean + half for mean, half in by_moment[how]],
                    )
                    for how in HOW
                    if how != EXACT
                ],
            )
        ],
        notes=[
            " ".join((__doc__ or "").split("\n\n")[1].split()),
            f"{size.task.name}; {len(size.seeds)} seeds. {CLUSTERS} clusters, a round after {ROUND_UPDATES} updates of"
            f" each, AdamW at {LR:g}. One loss after {size.before} rounds; or {losses} in {size.rounds} rounds, of"
            " another stage each.",
        ],
    )
