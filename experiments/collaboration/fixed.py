"""A fixed membership beside a plain loop on one machine: the weights of each step, with steps at once and delayed.

Backbone and volunteers, whose speeds differ by a factor of four, are the real programs on a virtual network. Each
contribution names its micro-batches. A plain loop of torch takes the same micro-batches, step by step: the mean of
their gradients by the weights of now, or, where steps are delayed, by the weights that have one average less; then a
step of the optimizer. The difference is the largest of any weight, of the largest weight. Links are slow enough for an
average to take about as long as a batch; a step's median time says what the overlap gains.
"""

import tempfile
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from experiments.collaboration.virtual_world import VirtualWorld
from experiments.harness.report import Claim, Part, Table
from ravnest.checkpoints.weight_files import open_weights
from ravnest.collaboration.messages import JoinMessage, TransferMessage
from ravnest.collaboration.trainer import GRADIENTS, STATISTICS, Trainer
from ravnest.errors import RavnestError
from ring_allreduce.transport import Message

PEERS = 4
TARGET = 256
COMPUTE_S = 4.0
"""All volunteers together fill a batch in so long."""

LINK_BYTES_PER_S = 60_000.0
"""Of a volunteer, each way, for 80 kB of gradients; the backbone's is four times as fast."""

WIDTH = 1024
MOST_DIFFERENCE = 1e-5


def measure(*, quick: bool) -> Part:
    """One world with steps at once, and one with delayed ones."""
    steps = 4 if quick else 30
    rows, differences, batches = [], [], []
    for name, delayed in (("at once", False), ("delayed by one", True)):
        difference, batch, seconds = compared(steps, delayed=delayed)
        differences.append(max(difference))
        batches += batch
        row = (f"{max(difference):.1e}", round(median(seconds), 2), round(min(batch), 3), round(max(batch), 3))
        rows.append((name, *row))
    return Part(
        name="fixed",
        title="A fixed membership, step by step",
        claims=[
            Claim(
                "equal",
                "difference of the weights from a plain loop's, largest of any step, at once and delayed",
                "at most 1e-5",
                " and ".join(f"{one:.1e}" for one in differences),
                max(differences) <= MOST_DIFFERENCE,
            ),
            Claim(
                "batch",
                "samples of a step, of the target: least and most",
                "1.0 to 1.1",
                f"{min(batches):.3f} to {max(batches):.3f}",
                min(batches) >= 1.0 and max(batches) <= 1.1,
            ),
        ],
        tables=[
            Table(
                f"{steps} steps of {TARGET} samples by {PEERS} volunteers",
                ("steps", "largest difference", "a step, median, s", "least batch, of the target", "most"),
                rows,
            )
        ],
        notes=[" ".join((__doc__ or "").split("\n\n")[1].split())],
    )


def compared(steps: int, *, delayed: bool, machines: int = 1) -> tuple[list[float], list[float], list[float]]:
    """The difference after each step, and its batch, of the target, and seconds. `machines`: of the backbone."""
    with tempfile.TemporaryDirectory() as folder:
        world = VirtualWorld(
            Path(folder), steps=steps, target=TARGET, width=WIDTH, wire="float32", delayed=delayed, every_state=True
        )
        given: list[tuple[int, str, int]] = []  # (step, order of the samples, number of the micro-batch)
        with world.running():
            links = [4 * LINK_BYTES_PER_S] * 2
            backbone = world.start_backbone(*links, machines=machines)
            for number in range(1, machines):
                world.start_backbone(*links, number=number, machines=machines)
            assert world.net.run(lambda: sum("stands by with" in one for one in world.told) == machines - 1, 600.0)
            parts = [4 ** (at / (PEERS - 1)) for at in range(PEERS)]
            for at, part in enumerate(parts):
                rate = TARGET / COMPUTE_S * part / sum(parts)
                world.join(f"v{at}", rate, LINK_BYTES_PER_S, LINK_BYTES_PER_S).watch = _Noting(given)
            world.net.run(lambda: world.result is not None or not backbone.alive, 3600.0)
            if backbone.error is not None:
                raise backbone.error
        curve = world.curve()
        for at, entry in enumerate(curve):
            named = sum(step == at for step, _, _ in given) * world.job.micro_batch
            if named != entry["samples"]:
                raise RavnestError(f"step {at} has {entry['samples']} samples, of which {named} were given")
        differences = [
            max(float((weights[name] - one).abs().max()) for name, one in alone.items())
            / max(float(one.abs().max()) for one in alone.values())
            for alone, weights in zip(_alone(world, given, steps, delayed=delayed), _kept(world, steps), strict=True)
        ]
        return (
            differences,
            [entry["samples"] / TARGET for entry in curve],
            [entry["seconds"] for entry in curve[1:]],
        )


class _Noting:
    """Notes which micro-batches a volunteer has given to which step."""

    def __init__(self, given: list[tuple[int, str, int]]) -> None:
        self._given, self._order = given, ""

    def __call__(self, way: str, message: Message) -> None:
        if way == "out" and isinstance(message, JoinMessage):
            self._order = message.order
        elif way == "out" and isinstance(message, TransferMessage):
            numbers = [first + at for first, many in message.micro_batches for at in range(many)]
            self._given += [(message.step, self._order, number) for number in numbers]


def _alone(
    world: VirtualWorld, given: list[tuple[int, str, int]], steps: int, *, delayed: bool
) -> list[dict[str, Tensor]]:
    """The weights after each step of one process, which holds two copies of the model where steps are delayed."""
    now, before = (Trainer(world.job, world.job_file) for _ in range(2))
    found = []
    for step in range(steps):
        by = before if delayed else now
        parts = [by.again(order, number) for at, order, number in given if at == step]
        mean = torch.stack(parts).to(torch.float64).mean(0).to(torch.float32)
        if delayed:
            before.load({form.name: vector for form, vector in now.state()}, step)
        now.apply({GRADIENTS: mean, STATISTICS: torch.zeros(0)})
        found.append({name: one.detach().clone() for name, one in now.model.named_parameters()})
    return found


def _kept(world: VirtualWorld, steps: int) -> list[dict[str, Tensor]]:
    """The weights after each step that the backbone has kept."""
    found = []
    for step in range(1, steps + 1):
        file = open_weights(world.out / f"state-{step:06d}.safetensors")
        weights = {name: file.read(name) for name in file.stored if name.startswith("weights.")}
        shapes = {name: one.shape for name, one in Trainer(world.job, world.job_file).model.named_parameters()}
        found.append({name: weights[f"weights.{name}"].reshape(shape) for name, shape in shapes.items()})
    return found
