"""Three rounds in flight at once, for long: averaging progress stays stable, averaging weights does not (design §7)."""

import math

import torch
from torch import Tensor

from experiments.allreduce.in_process import Fleet
from experiments.allreduce.options import Options
from experiments.harness.report import Claim, Panel, Part, Series, Table
from ring_allreduce import Progress, RingSpec
from ring_allreduce.transport import LinkShape

MEMBERS, ELEMENTS, IN_FLIGHT = 4, 64, 3
ROUNDS, QUICK_ROUNDS = 1000, 150
STEP, NOISE = 0.02, 0.01
HOP_S = 0.45  # six hops of a ring of four: a round takes 2.7 of the steps in which rounds begin
DIVERGED = 1e6


def run(options: Options) -> Part:
    """Measure, and judge."""
    rounds = QUICK_ROUNDS if options.quick else ROUNDS
    stable, anchors_equal, in_flight = _progress(rounds, options.seed)
    naive = _weights(rounds, options.seed)
    tenth = rounds // 10
    early, late = max(stable[tenth : 2 * tenth]), max(stable[-tenth:])
    return Part(
        name="stability",
        title="Stability with rounds in flight",
        claims=[
            Claim(
                "progress",
                f"averaging progress, {IN_FLIGHT} rounds in flight, {rounds} rounds: the members' largest distance "
                "from their mean in "
                "the last tenth of the rounds over that in the second tenth; anchors equal, byte for byte, after "
                "every merge",
                "<= 1.5, equal",
                f"{late / early:.2f}, {'equal' if anchors_equal else 'not equal'}, {in_flight} in flight",
                late <= 1.5 * early and anchors_equal and in_flight == IN_FLIGHT,
            ),
            Claim(
                "naive",
                "averaging weights with w += average − snapshot diverges under the same conditions",
                f"grows {DIVERGED:g} times",
                f"{naive[-1] / naive[0]:.2g} times by round {len(naive)}",
                naive[-1] / naive[0] >= DIVERGED,
            ),
        ],
        tables=[
            Table(
                "Largest distance of a member from the mean of all",
                ["round", "progress", "weights"],
                [[n, stable[n - 1], naive[n - 1] if n <= len(naive) else None] for n in _shown(rounds)],
            )
        ],
        panels=[
            Panel(
                f"{IN_FLIGHT} rounds in flight",
                "round",
                "distance of members from their mean",
                [
                    Series("averaging progress", list(range(1, rounds + 1)), stable),
                    Series("averaging weights", list(range(1, len(naive) + 1)), naive),
                ],
                log_y=True,
            )
        ],
        notes=[
            f"{MEMBERS} members, each drawn to a minimum of its own with noise, over the in-process transport with "
            "links of "
            f"{HOP_S} steps delay, so that each round takes {2 * (MEMBERS - 1) * HOP_S:.1f} steps and {IN_FLIGHT} "
            "overlap."
        ],
    )


class _Training:
    """What members do between rounds: steps towards a minimum of their own, with noise."""

    def __init__(self, seed: int) -> None:
        self._draw = torch.Generator().manual_seed(seed)
        self._minima = [torch.randn(ELEMENTS, generator=self._draw) for _ in range(MEMBERS)]

    def step(self, weights: list[Tensor]) -> None:
        for own, minimum in zip(weights, self._minima, strict=True):
            own += STEP * (minimum - own) + NOISE * torch.randn(ELEMENTS, generator=self._draw)


def _fleet() -> Fleet:
    names = tuple(f"m{index}" for index in range(MEMBERS))
    spec = RingSpec("ring", names, ELEMENTS, ELEMENTS)
    return Fleet(spec, max_rounds=IN_FLIGHT, link=LinkShape(1e12, HOP_S))


def _progress(rounds: int, seed: int) -> tuple[list[float], bool, int]:
    training, fleet = _Training(seed), _fleet()
    weights = [torch.zeros(ELEMENTS) for _ in range(MEMBERS)]
    members = [Progress(own) for own in weights]
    distances, equal, most = [], True, 0
    for number in range(1, rounds + 1):
        training.step(weights)
        if number > IN_FLIGHT:
            averages = fleet.take(number - IN_FLIGHT)
            for own, member, average in zip(weights, members, averages, strict=True):
                own += member.merge(number - IN_FLIGHT, average)
            equal = equal and all(torch.equal(member.anchor, members[0].anchor) for member in members)
        snapshots = [member.snapshot(number, own) for own, member in zip(weights, members, strict=True)]
        fleet.contribute(number, snapshots, [1.0] * MEMBERS)
        most = max(most, *(len(member.pending) for member in members))
        fleet.advance(1.0)
        distances.append(_distance(weights))
    return distances, equal, most


def _weights(rounds: int, seed: int) -> list[float]:
    training, fleet = _Training(seed), _fleet()
    weights = [torch.zeros(ELEMENTS) for _ in range(MEMBERS)]
    snapshots: dict[int, list[Tensor]] = {}
    distances: list[float] = []
    for number in range(1, rounds + 1):
        training.step(weights)
        if number > IN_FLIGHT:
            taken = snapshots.pop(number - IN_FLIGHT)
            for own, average, snapshot in zip(weights, fleet.take(number - IN_FLIGHT), taken, strict=True):
                own += average - snapshot
        snapshots[number] = [own.clone() for own in weights]
        fleet.contribute(number, snapshots[number], [1.0] * MEMBERS)
        fleet.advance(1.0)
        distances.append(_distance(weights))
        if not math.isfinite(distances[-1]) or distances[-1] > 1e3 * DIVERGED * distances[0]:
            break
    return distances


def _distance(weights: list[Tensor]) -> float:
    mean = torch.stack(weights).mean(0)
    return max(float((own - mean).norm()) for own in weights)


def _shown(rounds: int) -> list[int]:
    return [n for n in (1, 10, 25, 50, 100, 150, 300, 1000) if n <= rounds]
