"""How well steps meet their batch when they are short beside the time that a word takes.

Backbone and eight volunteers, whose speeds differ by a factor of four, are the real programs on a virtual network with
a latency of 20 ms each way. Their speed is raised from world to world, from steps of four seconds to steps whose
computing takes less than a millisecond: with steps at once, and with delayed ones. In the first step nobody's speed is
known before its first micro-batch.

More worlds have averages that take four to ten times as long as computing: ten volunteers with some two micro-batches
each, and a backbone that sends 50 kB/s through one queue, so that a word to stop waits behind averages for others.
"""

import itertools
import tempfile
from pathlib import Path
from statistics import median
from unittest import mock

from experiments.collaboration.virtual_world import FAST, VirtualWorld
from experiments.harness.report import Claim, Part, Table
from ravnest.collaboration import transfers

PEERS = 8
TARGET = 1024
COMPUTE_S = (4.0, 1.0, 0.25, 0.05, 0.01, 0.0005)
"""In so long all of them together fill a batch, world by world."""

SLOW_PEERS, SLOW_TARGET, SLOW_COMPUTE_S = 10, 160, (1.0, 1.3, 1.6, 2.0, 2.5)
SLOW_UP = 50e3
"""Bytes per second of the backbone whose averages take longer than computing."""

SLOW_WIDTH, SLOW_PIECE = 600, 16 * 1024


def measure(*, quick: bool) -> Part:
    """One world for each length of a step, and each way."""
    steps = 4 if quick else 30
    rows, least, most = [], 1.0, 1.0
    for delayed, compute_s in itertools.product((False, True), COMPUTE_S[1::3] if quick else COMPUTE_S):
        batches, seconds = _world(compute_s, steps, delayed=delayed)
        rows.append(
            (
                "delayed by one" if delayed else "at once",
                1000 * compute_s,
                round(1000 * median(seconds)),
                round(batches[0], 3),
                round(min(batches), 3),
                round(max(batches), 3),
            )
        )
        least, most = min(least, *batches), max(most, *batches)
    slow = {
        (delayed, compute_s): _slow(compute_s, 4 if quick else 12, delayed=delayed)
        for delayed, compute_s in itertools.product((False, True), SLOW_COMPUTE_S[2:3] if quick else SLOW_COMPUTE_S)
    }
    slow_batches = [batch for batches, _ in slow.values() for batch in batches]
    return Part(
        name="short_steps",
        title="Steps that are short beside the latency",
        claims=[
            Claim(
                "batch",
                "samples of a step, of the target: least and most of all worlds, the first steps too",
                "1.0 to 1.1",
                f"{least:.3f} to {most:.3f}",
                least >= 1.0 and most <= 1.1,
            ),
            Claim(
                "slow averages",
                "the same where averages take longer than computing",
                "1.0 to 1.1",
                f"{min(slow_batches):.3f} to {max(slow_batches):.3f}",
                min(slow_batches) >= 1.0 and max(slow_batches) <= 1.1,
            ),
        ],
        tables=[
            Table(
                f"{steps} steps of {TARGET} samples",
                ("steps", "computing, ms", "a step, median, ms", "first batch, of the target", "least", "most"),
                rows,
            ),
            Table(
                "averages that take longer than computing",
                ("steps", "computing, s", "a step, median, s", "least", "most"),
                [
                    (
                        "delayed by one" if delayed else "at once",
                        compute_s,
                        round(median(seconds), 2),
                        min(batches),
                        max(batches),
                    )
                    for (delayed, compute_s), (batches, seconds) in slow.items()
                ],
            ),
        ],
        notes=[" ".join(one.split()) for one in (__doc__ or "").split("\n\n")[1:]],
    )


def _world(compute_s: float, steps: int, *, delayed: bool) -> tuple[list[float], list[float]]:
    """The batches of all steps, of the target, and their seconds."""
    with tempfile.TemporaryDirectory() as folder:
        world = VirtualWorld(Path(folder), steps=steps, target=TARGET, delayed=delayed)
        return _batches(world, PEERS, TARGET, compute_s, FAST)


def _slow(compute_s: float, steps: int, *, delayed: bool) -> tuple[list[float], list[float]]:
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(transfers, "PIECE_BYTES", SLOW_PIECE):
        world = VirtualWorld(
            Path(folder), steps=steps, target=SLOW_TARGET, width=SLOW_WIDTH, wire="float32", delayed=delayed
        )
        return _batches(world, SLOW_PEERS, SLOW_TARGET, compute_s, SLOW_UP)


def _batches(
    world: VirtualWorld, peers: int, target: int, compute_s: float, up: float
) -> tuple[list[float], list[float]]:
    with world.running():
        backbone = world.start_backbone(up)
        parts = [4 ** (at / (peers - 1)) for at in range(peers)]
        for at, part in enumerate(parts):
            world.join(f"v{at}", target / compute_s * part / sum(parts))
        world.net.run(lambda: world.result is not None or not backbone.alive, 3600.0)
        if backbone.error is not None:
            raise backbone.error
    curve = world.curve()
    return [round(entry["samples"] / target, 3) for entry in curve], [entry["seconds"] for entry in curve]
