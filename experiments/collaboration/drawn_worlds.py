"""How well steps meet their batch in worlds that are drawn at random, whatever happens in them.

Backbone and volunteers are the real programs on a virtual network. Each world draws two to ten volunteers whose speeds
differ by up to ten times, one to three backbone machines, links of 32 kB/s to 10 MB/s each way, a model of 1,000 to
20,000 parameters, the form of gradients, and a batch of some two to sixteen micro-batches a volunteer; in seven of ten
worlds steps are delayed by one. Some volunteers leave after some steps. After the fourth step volunteers join, or one
is killed, loses its power or stands still for 15 s, or nothing happens.
"""

import random
import tempfile
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from experiments.collaboration.virtual_world import VirtualWorld
from experiments.harness.report import Claim, Part, Table
from ravnest.collaboration import transfers

WORLDS = 100
STEPS = 16
MICRO = 8
EVENTS = ("nothing", "joins", "frozen", "killed", "power cut")
FROZEN_S = 15.0
MOST_BATCH = 1.1
MOST_S = 20_000.0


@dataclass(frozen=True)
class Drawn:
    """One world, and the batches of its steps, of the target."""

    seed: int
    delayed: bool
    peers: int
    machines: int
    target: int
    event: str
    batches: list[float]


def measure(*, quick: bool) -> Part:
    """One collaboration for each world."""
    found = [world(seed) for seed in range(8 if quick else WORLDS)]
    batches = [batch for one in found for batch in one.batches]
    made = sum(len(one.batches) == STEPS for one in found)
    over = sum(batch > MOST_BATCH for batch in batches)
    sizes = {"2 or 3": (2, 3), "4 to 6": (4, 6), "7 to 10": (7, 10)}
    return Part(
        name="drawn_worlds",
        title="Worlds drawn at random",
        claims=[
            Claim("steps", "worlds that made all their steps", "all", f"{made} of {len(found)}", made == len(found)),
            Claim("least", "samples of a step, of the target: least", ">= 1", f"{min(batches):.3f}", min(batches) >= 1),
            Claim(
                "most",
                "samples of a step, of the target: most",
                "<= 1.1",
                f"{max(batches):.3f}; above 1.1 in {over} of {len(batches)} steps",
                over == 0,
            ),
        ],
        tables=[
            Table(
                f"{STEPS} steps a world",
                ("steps", "volunteers", "worlds", "steps made", "above 1.1", "most"),
                [
                    row(how, name, [one for one in found if one.delayed == delayed and least <= one.peers <= most])
                    for how, delayed in (("at once", False), ("delayed by one", True))
                    for name, (least, most) in sizes.items()
                ],
            ),
            Table(
                "worlds with a batch above 1.1",
                ("seed", "steps", "volunteers", "backbone machines", "target", "what happens", "most"),
                [
                    (
                        one.seed,
                        "delayed by one" if one.delayed else "at once",
                        one.peers,
                        one.machines,
                        one.target,
                        one.event,
                        round(max(one.batches), 3),
                    )
                    for one in found
                    if max(one.batches, default=0.0) > MOST_BATCH
                ],
            ),
        ],
        notes=[" ".join((__doc__ or "").split("\n\n")[1].split())],
    )


def row(how: str, volunteers: str, found: list[Drawn]) -> tuple[str | int | float, ...]:
    """What has come of worlds of one size."""
    batches = [batch for one in found for batch in one.batches]
    over = sum(batch > MOST_BATCH for batch in batches)
    return how, volunteers, len(found), len(batches), over, round(max(batches, default=0.0), 3)


def world(seed: int) -> Drawn:
    """The world of that seed. Raises what ended its backbone."""
    draw = random.Random(seed)
    delayed, peers, machines = draw.random() < 0.7, draw.randint(2, 10), draw.choice((1, 1, 2, 3))
    target = max(12 * MICRO, peers * MICRO * draw.choice((2, 4, 16)))
    width, wire = draw.choice((64, 600, 1024)), draw.choice(("float16", "float32", "int8"))
    piece, event = draw.choice((1024, 16 * 1024, 256 * 1024)), draw.choice(EVENTS)

    def rate() -> float:
        return 4 * 10 ** draw.random()

    def link() -> float:
        return 10 ** draw.uniform(4.5, 7.0)

    with tempfile.TemporaryDirectory() as folder, mock.patch.object(transfers, "PIECE_BYTES", piece):
        world = VirtualWorld(
            Path(folder), steps=STEPS, target=target, micro=MICRO, width=width, wire=wire, delayed=delayed
        )
        with world.running():
            up, down = link(), link()
            backbone = world.start_backbone(up, down, machines=machines)
            for number in range(1, machines):
                world.start_backbone(up, down, number=number, machines=machines)
            if machines > 1:
                world.net.run(lambda: sum("stands by with" in line for line in world.told) >= machines - 1, 300.0)
            for at in range(peers):
                world.join(f"v{at}", rate(), link(), link(), leaves_after=draw.choice((0, 0, 0, 5, 8)) if at > 1 else 0)
            world.net.run(lambda: world.steps >= 4 or not backbone.alive, MOST_S)
            hit = world.machines["v1"]
            match event:
                case "joins":
                    for at in range(peers, peers + draw.randint(1, 4)):
                        world.join(f"v{at}", rate(), link(), link())
                case "frozen":
                    hit.still_until_s = world.net.now_s + FROZEN_S
                case "killed" | "power cut":
                    world.net.kill(hit, told=event == "killed")
                case _:
                    pass
            world.net.run(lambda: world.result is not None or not backbone.alive, MOST_S)
            if backbone.error is not None:
                raise backbone.error
        batches = [entry["samples"] / target for entry in world.curve()]
    return Drawn(seed, delayed, peers, machines, target, event, batches)
