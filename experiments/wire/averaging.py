"""Rounds that average in shorter forms: what eight clusters learn then.

In: a GPT on characters and a convolutional network on digits, trained by eight clusters that average what each has
changed. Out: held-out losses. A round is one of direct exchange: each cluster's part is encoded, what is lost is fed
back in its next, the mean is encoded once more by who owns it, and all take what everybody decodes. The arithmetic is
that of the rings (ring_allreduce/ring/wire_forms.py).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

import torch
from torch import Tensor, nn

from experiments.harness.report import Part
from experiments.pipeline.tasks import SHAKESPEARE, Batch, Characters, Digits, Task
from experiments.wire.forms import FORMS, SEEDS, losses_of, part_of
from ravnest.training.precision import RoundWireName, ring_wire
from ring_allreduce.ring import decode, encode
from ring_allreduce.rounds import Nesterov

CLUSTERS = 8
ROUND_FORMS: Sequence[RoundWireName] = (*FORMS, "sparse")
MOST, LEAST_RATIO = 0.002, 50.0
CLIP = 1.0
ROUND_UPDATES = 10
ROUNDS = {"characters": 40, "digits": 12}
LR = 2e-3
OUTER = {"lr": 0.7, "momentum": 0.9}


def run(*, quick: bool) -> Part:
    """Train each task in each form, with the same seeds."""
    torch.set_num_threads(1)
    tasks: dict[str, Task] = {"digits": Digits(batch=16)}
    if not quick:
        tasks["characters"] = Characters(SHAKESPEARE, layers=2, width=32, context=32, batch=16)
    seeds = SEEDS[:1] if quick else SEEDS
    rounds = dict.fromkeys(ROUNDS, 1) if quick else ROUNDS
    losses = losses_of(
        tasks, ROUND_FORMS, lambda name, task, form, seed: trained(task, form, seed, rounds[name]), seeds
    )
    sizes = "; ".join(f"{task.name}; {rounds[name]} rounds" for name, task in tasks.items())
    return part_of(
        "averaging",
        "Between clusters: what each has changed",
        losses,
        most=MOST,
        least_ratio=LEAST_RATIO,
        notes=[
            f"{sizes}; {len(seeds)} seeds. {CLUSTERS} clusters, a round after {ROUND_UPDATES} updates of each; AdamW "
            f"at {LR:g} within, Nesterov's momentum {OUTER['momentum']} at {OUTER['lr']} between. Buffers are exact.",
        ],
    )


def trained(task: Task, form: RoundWireName, seed: int, rounds: int) -> float:
    """The held-out loss of the anchor after so many rounds."""
    carries = [torch.zeros_like(flat(task.model(seed))) for _ in range(CLUSTERS + 1)]
    outer = Nesterov(OUTER["lr"], OUTER["momentum"])

    def merged(_: int, parts: dict[int, Tensor]) -> Tensor:
        return outer(averaged(list(parts.values()), carries, form))

    return task.held_out_loss(trained_in_rounds(task, seed, range(CLUSTERS), rounds, merged), whole=True)


def trained_in_rounds(
    task: Task, seed: int, clusters: Iterable[int], rounds: int, merged: Callable[[int, dict[int, Tensor]], Tensor]
) -> nn.Module:
    """Train from a seed, and return the anchor. A cluster's number says which samples it reads.

    `merged` takes the number of a round, from 1, and what each cluster has changed, by its number. It returns what is
    added to the anchor; a cluster that it removes from what it was given has left.
    """
    anchor = task.model(seed)
    models = {index: task.model(seed) for index in clusters}
    optimizers = {index: torch.optim.AdamW(each.parameters(), lr=LR) for index, each in models.items()}
    batches = {index: task.batches(seed * CLUSTERS + index) for index in models}
    for number in range(1, rounds + 1):
        for index, each in models.items():
            updated(task, each, optimizers[index], batches[index])
        before = flat(anchor)
        parts = {index: flat(each) - before for index, each in models.items()}
        put(anchor, before + merged(number, parts))
        models = {index: models[index] for index in parts}
        for name, buffer in anchor.named_buffers():
            if buffer.is_floating_point():
                buffer.copy_(torch.stack([dict(each.named_buffers())[name] for each in models.values()]).mean(0))
        for each in models.values():
            put(each, flat(anchor))
    return anchor


def updated(task: Task, model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterator[Batch]) -> None:
    """The updates of one cluster between two rounds."""
    for inputs, target in islice(batches, ROUND_UPDATES):
        optimizer.zero_grad()
        task.loss(model(inputs), target).backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()


def averaged(parts: list[Tensor], carries: list[Tensor], form: RoundWireName) -> Tensor:
    """The mean of these vectors as all members hold it. `carries`: what was lost, of each and of the mean's owner."""
    total = torch.zeros_like(parts[0])
    for index, part in enumerate(parts):
        total += _passed(part, carries, index, form)
    return _passed(total / len(parts), carries, len(parts), form)


def _passed(vector: Tensor, carries: list[Tensor], index: int, form: RoundWireName) -> Tensor:
    wire, whole = ring_wire(form), vector + carries[index]
    carries[index] = torch.zeros_like(whole)
    return decode(wire, encode(wire, whole, 1.0, carries[index]), whole.numel(), 1.0, torch.float32)


def flat(model: nn.Module) -> Tensor:
    """A copy of all parameters as one vector."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def put(model: nn.Module, vector: Tensor) -> None:
    """Set all parameters by such a vector."""
    at = 0
    for parameter in model.parameters():
        parameter.data.copy_(vector[at : at + parameter.numel()].view_as(parameter))
        at += parameter.numel()
