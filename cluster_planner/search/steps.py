"""What a search tells while it goes on: one line for each step, so that a reader sees why a plan is as it is.

In: candidates. Out: words.
"""

from collections.abc import Callable
from dataclasses import dataclass

from cluster_planner.formatting import format_count, format_rate
from cluster_planner.search.candidates import Candidate


@dataclass(frozen=True)
class Step:
    """One step of a search.

    `objective` is that of the best plan worked out so far, 0 before there is one; `gained` is this step's part of it.
    """

    phase: str
    words: str
    objective: float
    gained: float

    def __str__(self) -> str:
        best = f"; best so far {format_rate(self.objective)}" if self.objective > 0 else ""
        return f"{self.phase}: {self.words}{best}"


Tell = Callable[[Step], None]


def unheard(step: Step) -> None:
    """Nobody is told of the steps of a search within a search."""


def outcome(before: Candidate | None, found: Candidate | None) -> str:
    """Return in words what was found, beside the best plan before."""
    if found is None:
        return "no plan"
    stages = sum(len(cluster.stages) for cluster in found.clusters)
    clusters, nodes = format_count(len(found.clusters), "cluster"), format_count(stages, "node")
    words = f"{clusters} of {nodes}, worth {format_rate(found.objective)}"
    return words if before is None else f"{words} (before: {len(before.clusters)}, {format_rate(before.objective)})"
