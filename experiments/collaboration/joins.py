"""A hundred volunteers that join while twenty others train, a quarter of all behind routers that let nobody in.

Backbone and volunteers are the real programs on a virtual network: a backbone of 1 Gbit/s and volunteers of 100 Mbit/s
that average 18 million parameters, as in ALBERT-large, all scaled down by 18 so that a million are trained. Each joiner
comes while averages are under way, at a random moment of them, takes the state, makes a step, and leaves. The same
world without joiners is the baseline. Nobody listens but the backbone: to a volunteer it makes no difference whether
its router lets anybody in, so all of them are outgoing-only.
"""

import random
import tempfile
from functools import partial
from pathlib import Path
from statistics import mean

from experiments.collaboration.virtual_world import VirtualWorld
from experiments.harness.report import Claim, Part, Table

SCALE = 18
BACKBONE, VOLUNTEER = 125e6 / SCALE, 12.5e6 / SCALE
WIDTH = 52_600
"""A million parameters."""

PEERS = 20
TARGET = 960
COMPUTE_S = 60.0
"""All volunteers together fill a batch in so long."""

MOST_S = 20_000.0


def measure(*, quick: bool) -> Part:
    """Two worlds: with joiners, and without."""
    joiners, steps, batches = (6, 4, 1) if quick else (100, 20, 10)
    alone, _, _ = _world(0, steps, batches)
    seconds, failed, came = _world(joiners, steps, batches)
    # The first steps have no averages behind them. Joiners come after the third one, and the last ones take the state
    # and compute for two steps more; after these a step is as long as without them.
    joining = slice(3, 3 + batches + 2)
    slower = mean(seconds[joining]) / mean(alone[joining]) - 1
    return Part(
        name="joins",
        title="Volunteers that join during averaging",
        claims=[
            Claim("none failed", "joiners that made no step, of all", "0", f"{failed} of {came}", failed == 0),
            Claim(
                "delay",
                "longer steps while volunteers join and take the state, mean",
                "at most 5 %",
                f"{slower:+.1%}",
                None if quick else slower <= 0.05,
            ),
        ],
        tables=[
            Table(
                "seconds of a step",
                ("step", "nobody joins", f"{came} join"),
                [
                    (at, round(one, 2), round(other, 2))
                    for at, (one, other) in enumerate(zip(alone, seconds, strict=True), 1)
                ],
            )
        ],
        notes=[" ".join((__doc__ or "").split("\n\n")[1].split())],
    )


def _world(joiners: int, steps: int, batches: int) -> tuple[list[float], int, int]:
    """Seconds of each step, and how many joiners failed, of how many that came in so many batches of them."""
    draw = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        world = VirtualWorld(Path(folder), steps=steps, target=TARGET, micro=8, width=WIDTH)
        with world.running():
            backbone = world.start_backbone(BACKBONE, BACKBONE)
            for at in range(PEERS):
                world.join(f"v{at}", TARGET / COMPUTE_S / PEERS, VOLUNTEER, VOLUNTEER)
            coming = [f"j{at}" for at in range(joiners)]
            for step in range(1, steps):
                world.net.run(partial(_has_made, world, step), MOST_S)
                if 3 <= step < 3 + batches:  # the average of this step is under way now
                    share = -(-len(coming) // max(1, 3 + batches - step))
                    for name in coming[:share]:
                        world.net.at(draw.uniform(0.0, 6.0), partial(_join, world, name))
                    coming = coming[share:]
            world.net.run(lambda: not backbone.alive, MOST_S)
            if backbone.error is not None:
                raise backbone.error
            world.net.run(lambda: not any(one.alive for one in world.machines.values()), world.net.now_s + 900)
            came = [name for name in world.machines if name.startswith("j")]
            failed = [
                name
                for name in came
                if world.machines[name].error is not None or not world.volunteers[name].given.steps
            ]
            return [entry["seconds"] for entry in world.curve()], len(failed), len(came)


def _has_made(world: VirtualWorld, step: int) -> bool:
    return world.steps >= step or not world.net.machines[0].alive


def _join(world: VirtualWorld, name: str) -> None:
    """Its first micro-batch takes so long that it gives nothing, and makes nobody's step shorter."""
    world.join(name, 0.08, VOLUNTEER, VOLUNTEER, leaves_after=1)
