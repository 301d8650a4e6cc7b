"""Part `program`: the same questions asked of the real program, with real models, real data and delays as they occur.

Decides the trainings and what they are compared with: SGD without delay on the same samples with the same steps, and
the theorem's bound with estimated constants. What a training is, is program_run's.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.convergence.program_delays import clusters, delays
from experiments.convergence.program_plain import estimate
from experiments.convergence.program_rate import by_length, by_ray, characters, rate
from experiments.harness.report import Part


@dataclass(frozen=True)
class Sizes:
    """Updates of each cluster, delays in updates, and seeds."""

    lengths: Sequence[int]
    clusters: Sequence[int]
    of_fleet: int
    delayed: int
    delays: Sequence[int]
    corrected: bool
    characters: Sequence[int]
    ray: bool
    seeds: int


def sizes(*, quick: bool) -> Sizes:
    """Those of the report, or small ones."""
    if quick:
        return Sizes((32, 128), (1, 2), 64, 128, (2, 64), False, (), False, 2)
    lengths = tuple(2**power for power in range(6, 13))
    return Sizes(lengths, (1, 2, 3), 512, 512, (4, 16, 64, 256), True, (64, 256), True, 3)


def run(*, quick: bool) -> Part:
    """Measure and judge."""
    size = sizes(quick=quick)
    problem = estimate("digits")
    print(f"  digits: L ≈ {problem.smoothness:.3g}, σ² ≈ {problem.whole_sigma_sq:.3g}", file=sys.stderr)
    real, plain, bounds = by_length("digits", size.lengths, size.seeds, stages=2, staleness=1)
    found = [
        rate(size.lengths, real, plain, bounds),
        clusters(problem, size.clusters, size.of_fleet, size.lengths, real),
        delays(problem, size.delayed, size.delays, size.seeds, corrected=size.corrected),
    ]
    if size.characters:
        found.append(characters(size.characters))
    if size.ray:
        found.append(by_ray(problem))
    notes = [
        "Trainings of the program itself: a process for each stage, its transport, its driver, rounds and checkpoints, "
        "all as fast as this machine goes, with plain SGD. The stages' processes are forks of one that has imported "
        "torch already, in the place of Ray's actors, which take ten seconds to start; the claim `ray` holds a "
        "training for each of the questions by `ravnest run` beside them. ‖∇f‖² is exact, on the whole set of samples "
        "that training draws from (with replacement), at the anchor of each checkpoint, and its mean is over all "
        "samples of the run.",
        f"digits: {problem.smoothness:.3g} for L and {problem.whole_sigma_sq:.3g} for σ² were seen along a short "
        f"training, f − 0 is {problem.gap:.3g} at the start. They are estimates, and so is every bound and threshold "
        "here. Steps are γ₁ with them, and 1 / (2 L) where that is less, as for characters. Plain: one process, no "
        "delay, the same micro-batches and steps.",
        f"{size.seeds} seeds, of weights and samples alike. Delays depend on this machine and its load: another run "
        "has others. What this part cannot show: many octaves of K or many clusters (parts rate and speedup do), "
        "wide-area links, and machines of unequal speed.",
    ]
    return Part(
        "program",
        "The real program",
        [claim for claims, _, _ in found for claim in claims],
        [table for _, tables, _ in found for table in tables],
        [panel for _, _, panels in found for panel in panels],
        notes,
    )
