"""A hundred volunteers that join while twenty others train, a quarter of all behind routers that let nobody in.

Backbone and volunteers are the real programs on a virtual network: a backbone of 1 Gbit/s and volunteers of 100 Mbit/s
that average 18 million parameters, as in ALBERT-large, all scaled down by 18 so that a million are trained. Each joiner
comes while averages are under way, at a random moment of them, takes the state, makes a step, and leaves. The same
world without joiners is the baseline. Nobody listens but the backbone: to a volunteer it makes no difference whether
its router lets anybody in, so all of them are outgoing-only. With two and three backbone machines, each of 1 Gbit/s,
those that stand by hand the state over, too, and may add up shares, in both worlds alike. A volunteer joins from the
word that it has made its model to its first report, before which it has the state.
"""

import random
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean, median

from experiments.collaboration.virtual_world import VirtualWorld
from experiments.harness.report import Claim, Part, Table
from ravnest.collaboration.messages import JoinMessage, ProgressMessage
from ring_allreduce.transport import Message

SCALE = 18
BACKBONE, VOLUNTEER = 125e6 / SCALE, 12.5e6 / SCALE
WIDTH = 52_600
"""A million parameters."""

PEERS = 20
TARGET = 960
COMPUTE_S = 60.0
"""All volunteers together fill a batch in so long."""

MACHINES = (1, 2, 3)
MOST_S = 20_000.0


@dataclass(frozen=True)
class Joined:
    """What has come of one world: the seconds of each step, and of each joining, and how many joiners failed."""

    seconds: list[float]
    joining_s: list[float]
    failed: int
    came: int


def measure(*, quick: bool) -> Part:
    """Two worlds for each number of machines: with joiners, and without."""
    joiners, steps, batches = (6, 4, 1) if quick else (100, 20, 10)
    # The first steps have no averages behind them. Joiners come after the third one, and the last ones take the state
    # and compute for two steps more; after these a step is as long as without them.
    joining = slice(3, 3 + batches + 2)
    alone, beside, slower = dict[int, list[float]](), dict[int, Joined](), dict[int, float]()
    for machines in MACHINES[: 2 if quick else 3]:
        alone[machines] = _world(0, steps, batches, machines).seconds
        beside[machines] = _world(joiners, steps, batches, machines)
        slower[machines] = mean(beside[machines].seconds[joining]) / mean(alone[machines][joining]) - 1
    failed, came = (sum(getattr(one, name) for one in beside.values()) for name in ("failed", "came"))
    medians = {machines: median(one.joining_s) for machines, one in beside.items()}
    longest = {machines: max(one.joining_s) for machines, one in beside.items()}
    most = max(longest)
    return Part(
        name="joins",
        title="Volunteers that join during averaging",
        claims=[
            Claim("none failed", "joiners that made no step, of all", "0", f"{failed} of {came}", failed == 0),
            Claim(
                "delay",
                "longer steps while volunteers join and take the state, mean; most of all numbers of machines",
                "at most 5 %",
                f"{max(slower.values()):+.1%}",
                None if quick else max(slower.values()) <= 0.05,
            ),
            Claim(
                "sooner",
                f"longest time to join with {most} machines, of that with one",
                "at most 0.8",
                f"{longest[most] / longest[1]:.2f}",
                None if quick else longest[most] / longest[1] <= 0.8,
            ),
        ],
        tables=[
            Table(
                "seconds until who joins has the state",
                ("machines", "median", "longest", "longer steps (%)"),
                [
                    (
                        machines,
                        round(medians[machines], 1),
                        round(longest[machines], 1),
                        round(100 * slower[machines], 1),
                    )
                    for machines in beside
                ],
            ),
            Table(
                "seconds of a step with one machine",
                ("step", "nobody joins", f"{beside[1].came} join"),
                [
                    (at, round(one, 2), round(other, 2))
                    for at, (one, other) in enumerate(zip(alone[1], beside[1].seconds, strict=True), 1)
                ],
            ),
        ],
        notes=[" ".join((__doc__ or "").split("\n\n")[1].split())],
    )


def _world(joiners: int, steps: int, batches: int, machines: int) -> Joined:
    """Joiners come in so many batches of them."""
    draw = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        world = VirtualWorld(Path(folder), steps=steps, target=TARGET, micro=8, width=WIDTH)
        with world.running():
            backbone, *others = [
                world.start_backbone(BACKBONE, BACKBONE, number=number, machines=machines) for number in range(machines)
            ]
            world.net.run(lambda: sum("stands by with" in line for line in world.told) >= len(others), MOST_S)
            for at in range(PEERS):
                world.join(f"v{at}", TARGET / COMPUTE_S / PEERS, VOLUNTEER, VOLUNTEER)
            coming = [f"j{at}" for at in range(joiners)]
            began_s, joining_s = dict[str, float](), dict[str, float]()
            for step in range(1, steps):
                world.net.run(partial(_has_made, world, step), MOST_S)
                if 3 <= step < 3 + batches:  # the average of this step is under way now
                    share = -(-len(coming) // max(1, 3 + batches - step))
                    for name in coming[:share]:
                        world.net.at(draw.uniform(0.0, 6.0), partial(_join, world, name, began_s, joining_s))
                    coming = coming[share:]
            world.net.run(lambda: not backbone.alive, MOST_S)
            if backbone.error is not None:
                raise backbone.error
            everyone = [*others, *world.machines.values()]
            world.net.run(lambda: not any(one.alive for one in everyone), world.net.now_s + 900)
            came = [name for name in world.machines if name.startswith("j")]
            failed = [
                name
                for name in came
                if world.machines[name].error is not None or not world.volunteers[name].given.steps
            ]
            seconds = [entry["seconds"] for entry in world.curve()]
            return Joined(seconds, list(joining_s.values()), len(failed), len(came))


def _has_made(world: VirtualWorld, step: int) -> bool:
    return world.steps >= step or not world.net.machines[0].alive


def _join(world: VirtualWorld, name: str, began_s: dict[str, float], joining_s: dict[str, float]) -> None:
    """Its first micro-batch takes so long that it gives nothing, and makes nobody's step shorter."""

    def watch(direction: str, message: Message) -> None:
        if isinstance(message, JoinMessage):
            began_s[name] = world.net.now_s
        elif isinstance(message, ProgressMessage):
            joining_s.setdefault(name, world.net.now_s - began_s[name])

    world.join(name, 0.08, VOLUNTEER, VOLUNTEER, leaves_after=1).watch = watch
