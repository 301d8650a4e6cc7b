"""Averagings of one, two and three backbone machines, of which those that stand by add up shares.

The real programs, backbones and eight volunteers, are on a virtual network where each has 100 Mbit/s each way. They
average 18 million parameters as float16, as in ALBERT-large, all scaled down by 90, pieces and links too, and compute
for a second; the rest of a step is an averaging. The machines find out themselves how fast links are and who helps: the
steps before and after are of one run, in which a machine that stands by takes each average, too. The program's bound
lets contributions and averages travel at the same time; steps that are made at once have one after the other, so that
an averaging takes as long as the busiest link needs for each of the two, which is the third column. Equality is that of
the part fixed, where the backbone has two machines: the weights of each step beside those of a plain loop that takes
the same micro-batches.
"""

import tempfile
from functools import partial
from pathlib import Path
from statistics import median
from unittest import mock

from experiments.collaboration import fixed
from experiments.collaboration.virtual_world import VirtualWorld
from experiments.harness.report import Claim, Part, Table
from ravnest.collaboration import transfers
from ravnest.collaboration.averaging_plan import paper_bound
from ravnest.collaboration.links import Collaboration, PeerLinks

SCALE = 90
LINK = 12.5e6 / SCALE
PIECE_BYTES = 8192
"""The scaled gradient has 98 of them."""

WIDTH = 10_527
PARAMETERS = 19 * WIDTH + 2
PEERS = 8
TARGET = 16 * PEERS
RATE = 16.0
COMPUTE_S = TARGET / RATE / PEERS
"""Samples per second of a volunteer, and what its part of a batch takes; an averaging is the rest of a step."""

MACHINES = (1, 2, 3)
MOST_S = 5000.0


def measure(*, quick: bool) -> Part:
    """A world for each number of machines, and one for equality."""
    steps = 7 if quick else 12
    rows, gains = [], dict[int, float]()
    same = True
    for machines in MACHINES[: 2 if quick else 3]:
        seconds, shares, equal = averagings(machines, steps)
        same = same and equal
        before_s, after_s = median(seconds[1:4]) - COMPUTE_S, median(seconds[-3:]) - COMPUTE_S
        one_by_one, bound = bounds(machines)
        gains[machines] = before_s / after_s
        rows.append(
            (
                machines,
                round(60 / after_s, 3),
                round(60 * one_by_one, 3),
                round(1 / after_s / one_by_one, 3),
                round(60 * bound, 3),
                round(before_s, 2),
                round(after_s, 2),
                round(gains[machines], 2),
                shares,
            )
        )
    with mock.patch.object(transfers, "PIECE_BYTES", 8192):
        at_once, _, _ = fixed.compared(5 if quick else 12, delayed=False, machines=2)
        delayed, _, _ = fixed.compared(5 if quick else 12, delayed=True, machines=2)
    return Part(
        name="helpers",
        title="Backbone machines that add up shares",
        claims=[
            Claim(
                "faster",
                "averagings per second of two machines, of those of the same two where one adds all up",
                "at least 1.9",
                f"{gains[2]:.2f}",
                gains[2] >= 1.9,
            ),
            Claim("same", "backbones and volunteers hold the same bytes at the end", "all", str(same), same),
            Claim(
                "equal",
                "two machines: difference of the weights from a plain loop's, of any step, at once and delayed",
                "at most 1e-5",
                f"{max(at_once):.1e} and {max(delayed):.1e}",
                max(*at_once, *delayed) <= fixed.MOST_DIFFERENCE,
            ),
        ],
        tables=[
            Table(
                f"{PEERS} volunteers",
                (
                    "machines",
                    "averagings per minute",
                    "the links allow, one after the other",
                    "of that",
                    "the program's bound",
                    "seconds before shares",
                    "seconds with them",
                    "times as fast",
                    "shares",
                ),
                rows,
            )
        ],
        notes=[" ".join((__doc__ or "").split("\n\n")[1].split())],
    )


def averagings(machines: int, steps: int) -> tuple[list[float], str, bool]:
    """Seconds of each step, who had which shares, and whether all hold the same bytes in the end."""
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(transfers, "PIECE_BYTES", PIECE_BYTES):
        world = VirtualWorld(Path(folder), steps=steps, target=TARGET, width=WIDTH)
        with world.running():
            backbones = [
                world.start_backbone(LINK, LINK, number=number, machines=machines) for number in range(machines)
            ]
            world.net.run(partial(_stand_by, world, machines - 1), MOST_S)
            for at in range(PEERS):
                world.join(f"v{at}", RATE, LINK, LINK)
            everyone = [*backbones, *world.machines.values()]
            world.net.run(lambda: not any(one.alive for one in everyone), MOST_S)
            for one in everyone:
                if one.error is not None:
                    raise one.error
            hashes = {result.weights_hash for result in world.results.values()}
            hashes |= {volunteer.given.weights for volunteer in world.volunteers.values()}
            shares = [line.rpartition(": ")[2] for line in world.told if "may add up shares" in line]
            return [entry["seconds"] for entry in world.curve()], shares[-1] if shares else "100%", len(hashes) == 1


def _stand_by(world: VirtualWorld, count: int) -> bool:
    return sum("stands by with" in line for line in world.told) >= count


def bounds(machines: int) -> tuple[float, float]:
    """Averagings per second: with gradients and averages one after the other, and of the paper's whole program."""
    backbones = tuple(PeerLinks(f"b{at}", LINK, LINK, 0.0, keeps_state=True) for at in range(machines))
    volunteers = tuple(PeerLinks(f"v{at}", LINK, LINK, 1.0) for at in range(PEERS))
    hidden = {(one.name, other.name): 0.0 for one in volunteers for other in volunteers if one is not other}
    given = Collaboration((*backbones, *volunteers), 2.0 * PARAMETERS, 1.0, hidden)
    up, down = PEERS + machines - 1, PEERS
    one_by_one = machines * LINK / (2.0 * PARAMETERS) / (up + down)
    return one_by_one, paper_bound(given, range(machines, machines + PEERS))
