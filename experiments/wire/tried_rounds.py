"""Ways of averaging in fewer bytes that are not built: what eight clusters learn with them.

In: the GPT of part `averaging`, with the same seeds, batches and rounds. Out: its held-out losses after a fourth, a
half and all of the rounds. Each cluster's part is passed on in a form, and the mean once more. What a cluster does not
send is added to its next part, and meanwhile it is out of the cluster's weights, as in a run, or stays in them
(`kept`). The models of all clusters and seeds are trained as one, whose tensors have a row for each.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import torch
from torch import Tensor

from experiments.harness.report import Cell, Part, Table
from experiments.pipeline.tasks import SHAKESPEARE, Characters, Digits, Task
from experiments.plan_quality.learning_runs import Together
from experiments.wire.averaging import CLIP, CLUSTERS, LEAST_RATIO, LR, MOST, OUTER, ROUND_UPDATES, ROUNDS, flat, put
from experiments.wire.forms import EXACT, higher, part_of
from experiments.wire.tried_forms import EXACT as EXACTLY
from experiments.wire.tried_forms import Tried, largest, normal_levels, whole_numbers
from ring_allreduce.rounds import Nesterov

SEEDS = range(2)


@dataclass(frozen=True)
class Way:
    """How rounds average."""

    form: Tried
    turns: int = 1
    """Of so many rounds a number travels in one, by its place."""
    at_once: bool = False
    """All numbers travel in that one: rounds are longer."""
    kept: bool = False
    momentum: bool = True
    dropped: bool = False
    """What is not sent after half of the rounds is dropped, as where a run is resumed."""

    @property
    def ratio(self) -> float:
        """How many times fewer bytes than float32."""
        return EXACTLY.bits * self.turns / self.form.bits

    def rests(self, number: int) -> bool:
        """Whether nothing is averaged in a round."""
        return self.at_once and number % self.turns > 0

    def passed(self, vector: Tensor, number: int) -> Tensor:
        """What arrives of this vector in a round."""
        arrives = torch.zeros_like(vector)
        if self.rests(number):
            return arrives
        turn = slice(None) if self.at_once else slice(number % self.turns, None, self.turns)
        arrives[turn] = self.form.passes(vector[turn])
        return arrives


SPARSE = largest(12, 256)
WAYS: Mapping[str, Way] = {
    EXACT: Way(EXACTLY),
    "float32, no momentum": Way(EXACTLY, momentum=False),
    "2 bits, kept": Way(normal_levels(2, 256), kept=True),
    "sign, kept": Way(normal_levels(1, 256), kept=True),
    "sparse": Way(SPARSE),
    "sparse, dropped half-way": Way(SPARSE, dropped=True),
    "sparse, no momentum": Way(SPARSE, momentum=False),
    "sparse, kept": Way(SPARSE, kept=True),
    "sparse, kept, no momentum": Way(SPARSE, kept=True, momentum=False),
    "int4 in seven turns, kept": Way(whole_numbers(7, 64), turns=7, kept=True),
    "int4 in seven turns, kept, no momentum": Way(whole_numbers(7, 64), turns=7, kept=True, momentum=False),
    "int4, a round in eight": Way(whole_numbers(7, 64), turns=8, at_once=True, kept=True),
    "int4, a round in eight, no momentum": Way(whole_numbers(7, 64), turns=8, at_once=True, kept=True, momentum=False),
    "sign in two turns, kept, no momentum": Way(normal_levels(1, 256), turns=2, kept=True, momentum=False),
}


def run(*, quick: bool) -> Part:
    """Train in each way, with the same seeds."""
    torch.set_num_threads(1)
    task: Task = Digits(batch=16) if quick else Characters(SHAKESPEARE, layers=2, width=32, context=32, batch=16)
    name, seeds = ("digits", SEEDS[:1]) if quick else ("characters", SEEDS)
    rounds = 4 if quick else ROUNDS[name]
    looks = (rounds // 4, rounds // 2, rounds)
    found: dict[str, dict[int, list[float]]] = {}
    for said, way in WAYS.items():
        found[said] = dict(trained(task, seeds, way, looks))
        print(f"  {name} {said}: {fmean(found[said][rounds]):.4f}", file=sys.stderr, flush=True)
    part = part_of(
        "tried_rounds",
        "Between clusters: shorter ways that are not built",
        {name: {said: losses[rounds] for said, losses in found.items()}},
        most=MOST,
        least_ratio=LEAST_RATIO,
        notes=[
            f"{task.name}; {rounds} rounds; {len(seeds)} seeds; as in part averaging, where `sparse` stands, too. With "
            "no momentum the anchor moves by the mean. In turns: by its place a number travels in one of so many "
            "rounds. Kept: what a cluster has not sent yet stays in its weights. Dropped: it is forgotten once, as "
            "where a run is resumed. Each claim is on the mean of its seeds.",
        ],
        ratios={said: way.ratio for said, way in WAYS.items()},
    )
    rows: list[list[Cell]] = [
        [said, WAYS[said].ratio, *(higher(losses[look], found[EXACT][look]).mean for look in looks)]
        for said, losses in found.items()
    ]
    columns = ["way", "times fewer bytes", *(f"after {look} rounds" for look in looks)]
    return replace(part, tables=[*part.tables, Table("How much above float32 after as many rounds", columns, rows)])


def trained(task: Task, seeds: Sequence[int], way: Way, looks: Sequence[int]) -> Iterator[tuple[int, list[float]]]:
    """Train all seeds, and yield the held-out loss of each one's anchor after so many rounds."""
    judged = task.model(0)
    anchors = torch.stack([flat(task.model(seed)) for seed in seeds])
    models = Together([task.model(seed) for seed in seeds for _ in range(CLUSTERS)])
    optimizer = torch.optim.AdamW(models.parameters(), lr=LR)
    batches = [task.batches(seed * CLUSTERS + cluster) for seed in seeds for cluster in range(CLUSTERS)]
    outers = [Nesterov(OUTER["lr"], OUTER["momentum"]) for _ in seeds]
    lost, lost_of_mean = torch.zeros(len(seeds), CLUSTERS, anchors.shape[1]), torch.zeros_like(anchors)
    for number in range(1, looks[-1] + 1):
        for _ in range(ROUND_UPDATES):
            _updated(task, models, optimizer, [next(each) for each in batches])
        whole = _rows(models).view_as(lost) - anchors[:, None] + (0 if way.kept else lost)
        sent = torch.stack([torch.stack([way.passed(part, number) for part in parts]) for parts in whole])
        mean = sent.mean(1) + lost_of_mean
        sent_mean = torch.stack([way.passed(part, number) for part in mean])
        lost, lost_of_mean = whole - sent, mean - sent_mean
        if way.dropped and number == looks[-1] // 2:
            lost, lost_of_mean = torch.zeros_like(lost), torch.zeros_like(lost_of_mean)
        if way.momentum and not way.rests(number):
            sent_mean = torch.stack([outer(one) for outer, one in zip(outers, sent_mean, strict=True)])
        anchors = anchors + sent_mean
        _give(models, (anchors[:, None] + (lost if way.kept else torch.zeros_like(lost))).flatten(0, 1))
        _average_buffers(models, len(seeds))
        if number in looks:
            losses = []
            for place, anchor in enumerate(anchors):
                models.fill(judged, place * CLUSTERS)  # the buffers, which all clusters of a seed have alike
                put(judged, anchor)
                losses.append(task.held_out_loss(judged, whole=True))
            yield number, losses


def _updated(
    task: Task, models: Together, optimizer: torch.optim.Optimizer, batches: Sequence[tuple[Tensor, Tensor]]
) -> None:
    inputs, targets = (torch.stack(each) for each in zip(*batches, strict=True))
    optimizer.zero_grad()
    losses = [task.loss(output, target) for output, target in zip(models(inputs), targets, strict=True)]
    torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
    gradients = [parameter.grad for parameter in models.parameters() if parameter.grad is not None]
    norms = torch.stack([gradient.flatten(1).square().sum(1) for gradient in gradients]).sum(0).sqrt()
    scales = (CLIP / (norms + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(scales.view(-1, *[1] * (gradient.dim() - 1)))
    optimizer.step()


def _rows(models: Together) -> Tensor:
    """The parameters of each model, as one vector."""
    return torch.cat([parameter.detach().flatten(1) for parameter in models.parameters()], 1)


def _give(models: Together, rows: Tensor) -> None:
    at = 0
    for parameter in models.parameters():
        length = parameter[0].numel()
        parameter.data.copy_(rows[:, at : at + length].reshape(parameter.shape))
        at += length


def _average_buffers(models: Together, seeds: int) -> None:
    for buffer in models.buffers():
        if buffer.is_floating_point():
            each = buffer.view(seeds, CLUSTERS, *buffer.shape[1:])
            each.copy_(each.mean(1, keepdim=True).expand_as(each))
