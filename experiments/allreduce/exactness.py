"""Are averages exact? All members' bytes, the error against float64, and what int8 loses over many rounds."""

import itertools

import torch
from torch import Tensor

from experiments.allreduce.in_process import Fleet
from experiments.allreduce.options import Options
from experiments.harness.report import Claim, Panel, Part, Series, Table, median
from ring_allreduce import RingSpec

MOST_ERROR = 1e-6
CHUNK_ELEMENTS = 4096
ROUNDS, QUICK_ROUNDS = 200, 60
COMPRESSED_ELEMENTS = 2000
COMPRESSED_MEMBERS = 4


def run(options: Options) -> Part:
    """Measure, and judge."""
    draw = torch.Generator().manual_seed(options.seed)
    rows, unequal, worst, cases = [], 0, 0.0, 0
    sizes = (1, 1_000, 10_003) if options.quick else (1, 7, 1_000, 65_536, 1_000_003)
    for members in (2, 3, 8) if options.quick else range(2, 9):
        errors = []
        for elements, weighted, shared, direct in itertools.product(sizes, (False, True), (False, True), (False, True)):
            if shared and direct:
                continue  # everyone sends everything: there are no blocks to share out
            vectors = [torch.randn(elements, generator=draw) for _ in range(members)]
            weights = [float(3 * index % 7) for index in range(members)] if weighted else [1.0] * members
            averages = _average(vectors, weights, shared=shared, direct=direct)
            exact = sum(w * v.double() for w, v in zip(weights, vectors, strict=True)) / sum(weights)
            norm = max(vector.double().norm().item() for vector in vectors)
            errors.append((averages[0].double() - exact).norm().item() / norm)
            unequal += any(average.numpy().tobytes() != averages[0].numpy().tobytes() for average in averages)
        rows.append([members, len(errors), median(errors), max(errors)])
        worst, cases = max(worst, *errors), cases + len(errors)
    rounds = QUICK_ROUNDS if options.quick else ROUNDS
    fed_back, forgotten = _compressed(draw, rounds, feedback=True), _compressed(draw, rounds, feedback=False)
    early, late = max(fed_back[: rounds // 2]), max(fed_back[rounds // 2 :])
    return Part(
        name="exactness",
        title="Exactness",
        claims=[
            Claim(
                "equal bytes",
                "all members hold the same bytes (2 to 8 members, sizes, weights, shares, ring and direct)",
                "all cases",
                f"{cases - unequal} of {cases}",
                unequal == 0,
            ),
            Claim(
                "float64",
                "error against the mean in float64, relative to the vector's norm, at worst",
                f"<= {MOST_ERROR:g}",
                f"{worst:.2g}",
                worst <= MOST_ERROR,
            ),
            Claim(
                "int8 feedback",
                f"int8 with feedback: the sum of {rounds} rounds' errors does not grow: its largest norm in the "
                "second half of "
                "the rounds over that in the first",
                "<= 1.25",
                f"{late / early:.2f}; without feedback it ends {forgotten[-1] / fed_back[-1]:.0f} times as large",
                late <= 1.25 * early,
            ),
        ],
        tables=[
            Table("Relative error against float64", ["members", "cases", "median", "largest"], rows),
            Table(
                f"int8: cumulated error over the vector's norm ({COMPRESSED_MEMBERS} members)",
                ["after rounds", "with feedback", "without"],
                [[n, fed_back[n - 1], forgotten[n - 1]] for n in (1, 10, 50, 100, 200) if n <= rounds],
            ),
        ],
        panels=[
            Panel(
                "int8 on the wire: cumulated error",
                "rounds",
                "‖sum of errors‖ / ‖vector‖",
                [
                    Series("with feedback", list(range(1, rounds + 1)), fed_back),
                    Series("without", list(range(1, rounds + 1)), forgotten),
                ],
                log_y=True,
            )
        ],
        notes=[
            "Rings in one process, over the transport's in-process twin: the same machine, arithmetic and envelope."
        ],
    )


def _average(vectors: list[Tensor], weights: list[float], *, shared: bool, direct: bool) -> list[Tensor]:
    count = len(vectors)
    parts = [1.0 + index for index in range(count)]
    shares = tuple(part / sum(parts) for part in parts) if shared else None
    fleet = Fleet(_spec(count, len(vectors[0]), shares=shares, direct=direct))
    fleet.contribute(1, vectors, weights)
    fleet.advance(0.0)
    return fleet.take(1)


def _compressed(draw: torch.Generator, rounds: int, *, feedback: bool) -> list[float]:
    """After each round the norm of all errors so far added up, over the vector's. Contributions wander slowly, as
    progress does. Without feedback each round has reducers of its own, which remember nothing.
    """
    spec = _spec(COMPRESSED_MEMBERS, COMPRESSED_ELEMENTS, wire="int8")
    vectors = [torch.randn(COMPRESSED_ELEMENTS, generator=draw) for _ in range(COMPRESSED_MEMBERS)]
    cumulated = torch.zeros(COMPRESSED_ELEMENTS, dtype=torch.float64)
    norms, fleet = [], Fleet(spec)
    for number in range(1, rounds + 1):
        vectors = [vector + 0.05 * torch.randn(COMPRESSED_ELEMENTS, generator=draw) for vector in vectors]
        at = number
        if not feedback:
            fleet, at = Fleet(spec), 1
        fleet.contribute(at, vectors, [1.0] * COMPRESSED_MEMBERS)
        fleet.advance(0.0)
        exact = torch.stack(vectors).double().mean(0)
        cumulated += fleet.take(at)[0].double() - exact
        norms.append(cumulated.norm().item() / exact.norm().item())
    return norms


def _spec(members: int, elements: int, **options: object) -> RingSpec:
    names = tuple(f"m{index}" for index in range(members))
    return RingSpec("ring", names, elements, CHUNK_ELEMENTS, **options)  # type: ignore[arg-type]
