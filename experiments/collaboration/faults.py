"""275 faults: eleven kinds, at each of five moments of a volunteer's step, four times, and once with delayed steps.

Backbone and volunteers are the real programs on a virtual network; what is sent is sealed and opened as in a real one.
Six volunteers train; the fault befalls one of them. A collaboration has to go on: all its steps are made, each with its
target batch and hardly more, within the time that patience allows; everyone who is there at the end has the backbone's
weights, to the byte; nobody else's line is ended; and what was no gradient is in no average.
"""

import random
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median_high

import torch
from torch import Tensor

from experiments.collaboration.virtual_network import Machine, Said, VirtualNetwork
from experiments.collaboration.virtual_world import VirtualWorld
from experiments.harness.report import Claim, Part, Table
from ravnest.collaboration.messages import (
    AliveMessage,
    GotMessage,
    PieceMessage,
    ProgressMessage,
    TensorMessage,
    TransferMessage,
)
from ring_allreduce.transport import Message

PEERS = 6
STEPS = 10
TARGET = 96
RATE = 4.0
"""Samples per second of each volunteer: a step takes some four seconds."""

FROZEN_S = 15.0
MOST_STEP_S = 400.0
"""A step with a fault in it: the first patience, the patience of the fault, and what is computed again."""

_GRADIENT = "gradients"


@dataclass
class Fault:
    """One fault at one volunteer. `act` begins it."""

    act: Callable[[VirtualNetwork, Machine], None]
    comes_back: bool
    """Whether its volunteer is at the end, too."""


@dataclass(frozen=True)
class Outcome:
    """What has come of one collaboration."""

    wrong: str
    """"" for nothing."""
    longest_s: float
    """The longest step after the first."""
    largest: float
    """The largest batch, of the target."""
    met: bool
    """Whether the moment of the fault came."""


def _tampered(change: Callable[[Message, tuple[Tensor, ...]], Said]) -> Callable[[VirtualNetwork, Machine], None]:
    def act(net: VirtualNetwork, machine: Machine) -> None:
        machine.tamper = lambda said: change(*said)

    return act


def _number(value: float) -> Callable[[Message, tuple[Tensor, ...]], Said]:
    def change(message: Message, tensors: tuple[Tensor, ...]) -> Said:
        if isinstance(message, PieceMessage):
            tensors = tuple(torch.full_like(one, value) for one in tensors)
        return message, tensors

    return change


def _shape(message: Message, tensors: tuple[Tensor, ...]) -> Said:
    if isinstance(message, PieceMessage):
        tensors = tuple(one[:-1] for one in tensors)
    return message, tensors


def _size(message: Message, tensors: tuple[Tensor, ...]) -> Said:
    if isinstance(message, TensorMessage):
        message = TensorMessage(name=message.name, dtype=message.dtype, elements=message.elements + 1)
    return message, tensors


def _samples(message: Message, tensors: tuple[Tensor, ...]) -> Said:
    if isinstance(message, TransferMessage):
        message = TransferMessage(
            what=message.what,
            step=message.step,
            tensors=message.tensors,
            samples=10**9,
            micro_batches=message.micro_batches,
        )
    return message, tensors


def _promise(message: Message, tensors: tuple[Tensor, ...]) -> Said:
    """It says that it has a whole batch, and never sends one."""
    if isinstance(message, ProgressMessage):
        message = ProgressMessage(
            step=message.step, samples=TARGET, samples_per_s=RATE, micro_batch=8, every_s=2.0, loss=None, loss_samples=0
        )
    elif isinstance(message, TransferMessage | TensorMessage | PieceMessage):
        return AliveMessage(step=0), ()
    return message, tensors


def _garble(net: VirtualNetwork, machine: Machine) -> None:
    machine.garble = True


def _freeze(net: VirtualNetwork, machine: Machine) -> None:
    machine.still_until_s = net.now_s + FROZEN_S


KINDS: Mapping[str, Fault] = {
    "killed": Fault(lambda net, machine: net.kill(machine), False),
    "power cut": Fault(lambda net, machine: net.kill(machine, told=False), False),
    "frozen for 15 s": Fault(_freeze, True),
    "connection cut": Fault(lambda net, machine: net.cut(machine), True),
    "garbage": Fault(_garble, True),
    "NaN": Fault(_tampered(_number(float("nan"))), False),
    "infinite": Fault(_tampered(_number(float("inf"))), False),
    "wrong shape": Fault(_tampered(_shape), False),
    "wrong size": Fault(_tampered(_size), False),
    "too many samples": Fault(_tampered(_samples), False),
    "promises kept by none": Fault(_tampered(_promise), False),
}


def _is_state(way: str, message: Message) -> bool:
    return way == "in" and isinstance(message, TransferMessage) and message.what == "state"


MOMENTS: Mapping[str, Callable[[str, Message], bool]] = {
    "joining": _is_state,
    "computing": lambda way, message: way == "out" and isinstance(message, ProgressMessage) and message.samples > 0,
    "sending": lambda way, message: way == "out" and isinstance(message, PieceMessage),
    "waiting": lambda way, message: way == "in" and isinstance(message, GotMessage),
    "taking": lambda way, message: way == "in" and isinstance(message, TransferMessage) and message.what == "average",
}


def measure(*, quick: bool) -> Part:
    """One collaboration for each fault."""
    rounds = [(0, False), (0, True)] if quick else [*((seed, False) for seed in range(4)), (0, True)]
    faults = [(kind, moment, *each) for each in rounds for kind in KINDS for moment in MOMENTS]
    faults = faults[::7] if quick else faults
    found = {fault: injected(*fault) for fault in faults}
    worst: dict[str, list[Outcome]] = {}
    for (kind, _, _, delayed), outcome in found.items():
        worst.setdefault(f"{kind}{', delayed steps' if delayed else ''}", []).append(outcome)
    wrong = [(*fault, one.wrong) for fault, one in found.items() if one.wrong]
    unmet = sum(not one.met for one in found.values())
    largest = max(one.largest for one in found.values())
    return Part(
        name="faults",
        title="Faults of volunteers",
        claims=[
            Claim(
                "faults",
                "collaborations that hung, ended, made a step below its batch, or held other bytes, of all",
                "0 of 200 or more",
                f"{len(wrong)} of {len(found)}",
                None if quick else not wrong and len(found) - unmet >= 200,
            ),
            Claim(
                "injected",
                "faults whose moment came",
                "at least 200",
                f"{len(found) - unmet}",
                None if quick else len(found) - unmet >= 200,
            ),
            Claim("batch", "samples of a step, of the target: most", "<= 1.1", f"{largest:.3f}", largest <= 1.1),
        ],
        tables=[
            Table(
                "the longest step after the first, in seconds, and the largest batch, of the target, by fault",
                ("fault", "faults", "longest, median", "longest, most", "largest batch"),
                [
                    (
                        kind,
                        len(all_of),
                        round(median_high(one.longest_s for one in all_of), 1),
                        round(max(one.longest_s for one in all_of), 1),
                        round(max(one.largest for one in all_of), 3),
                    )
                    for kind, all_of in worst.items()
                ],
            ),
            *([Table("what went wrong", ("fault", "moment", "seed", "delayed", "what"), wrong)] if wrong else []),
        ],
        notes=[" ".join((__doc__ or "").split("\n\n")[1].split())],
    )


def injected(kind: str, moment: str, seed: int, delayed: bool = False) -> Outcome:
    """One collaboration with that fault."""
    fault, draw = KINDS[kind], random.Random(f"{kind} {moment} {seed}")
    at_step = draw.randint(1, STEPS - 5)
    with tempfile.TemporaryDirectory() as folder:
        world = VirtualWorld(Path(folder), steps=STEPS, target=TARGET, delayed=delayed)
        with world.running():
            backbone = world.start_backbone()
            for at in range(1, PEERS):
                world.join(f"v{at}", RATE * draw.uniform(0.7, 1.5))
            if moment == "joining":
                world.net.run(lambda: world.steps >= at_step, MOST_STEP_S)
            victim = world.join("v0", RATE * draw.uniform(0.7, 1.5))
            came = [False]

            def watch(way: str, message: Message) -> None:
                if not came[0] and world.steps >= at_step and MOMENTS[moment](way, message):
                    came[0] = True
                    world.net.at(0.0, lambda: fault.act(world.net, victim))

            victim.watch = watch
            made = world.net.run(lambda: world.result is not None or not backbone.alive, STEPS * MOST_STEP_S)
            world.net.run(lambda: not any(one.alive for one in world.machines.values()), world.net.now_s + 300.0)
            largest = max((entry["samples"] / TARGET for entry in world.curve()), default=0.0)
            return Outcome(_wrong(world, backbone, fault, made), _longest_s(world), largest, came[0])


def _longest_s(world: VirtualWorld) -> float:
    return max((entry["seconds"] for entry in world.curve()[1:]), default=0.0)


def _wrong(world: VirtualWorld, backbone: Machine, fault: Fault, made: bool) -> str:
    if backbone.error is not None:
        return f"the backbone ended: {backbone.error!r}"
    if not made or world.result is None:
        return f"it hung at step {len(world.curve())}"
    curve = world.curve()
    if [entry["step"] for entry in curve] != list(range(1, STEPS + 1)):
        return f"steps {[entry['step'] for entry in curve]}"
    if min(entry["samples"] for entry in curve) < TARGET:
        return "a step is below its batch"
    if _longest_s(world) > MOST_STEP_S:
        return f"a step took {_longest_s(world):.0f} s"
    for name, volunteer in world.volunteers.items():
        if name == "v0" and not fault.comes_back:
            continue
        if world.machines[name].error is not None:
            return f"{name} ended: {world.machines[name].error!r}"
        if volunteer.given.weights != world.result.weights_hash:
            return f"{name} holds other weights"
        if name != "v0" and volunteer.given.visits != 1:
            return f"{name} lost its line"
    return ""
