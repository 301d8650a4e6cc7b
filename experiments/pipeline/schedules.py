"""Schedules in the virtual clock: how busy the slowest stage is, and samples per second, at several latencies.

The machines, links and the window's tuning are those of a run; only computing is stated instead of done. Asynchronous
rows begin with the window that a plan would name, and count from when the pipeline is filled and the window tuned.
`update_every` of asynchronous rows is what max_staleness 1 needs to admit the window at 100 ms.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cluster_planner import SYNCHRONOUS, Schedule
from experiments.harness.report import Table
from ravnest.simulator.fleet import VirtualCluster, VirtualFleet, VirtualStage
from ravnest.simulator.run import VirtualRun
from ring_allreduce.transport import LinkShape

FORWARD_S, BACKWARD_S, UPDATE_S = 0.020, 0.040, 0.005
BOUNDARY_BYTES = 250_000
BYTES_PER_S = 125e6  # 1 Gbit/s: 2 ms for a boundary
LATENCIES_S = (0.0, 0.020, 0.100)
SLOWER = 1.5
MAX_STALENESS = 1
UPDATE_EVERY = {4: 16, 8: 40}
SYNCHRONOUS_MICRO_BATCHES = (4, 16)


@dataclass(frozen=True)
class Row:
    """One run. `busy`: of the slowest stage. `window`: planned, and as it was at the end."""

    stages: int
    slow_stage: int | None
    schedule: Schedule
    update_every: int
    latency_s: float
    window: tuple[int, int]
    busy: float
    micro_batches_per_s: float
    max_staleness: int


def rows(micro_batches: int = 1200) -> list[Row]:
    """Every schedule at every latency; each run does so many micro-batches."""
    asynchronous = [
        row("async", stages, update_every, latency_s, slow, micro_batches)
        for stages, update_every in UPDATE_EVERY.items()
        for latency_s in LATENCIES_S
        for slow in (None, 1)
    ]
    synchronous = [
        row(schedule, stages, count, latency_s, None, micro_batches // 4)
        for stages in UPDATE_EVERY
        for latency_s in LATENCIES_S
        for schedule in SYNCHRONOUS
        for count in SYNCHRONOUS_MICRO_BATCHES
    ]
    return asynchronous + synchronous


def row(
    schedule: Schedule, stages: int, update_every: int, latency_s: float, slow: int | None, micro_batches: int
) -> Row:
    asynchronous = schedule == "async"
    factors = [SLOWER if index == slow else 1.0 for index in range(stages)]
    period_s = max(factors) * (FORWARD_S + BACKWARD_S) + UPDATE_S / update_every
    transfer_s = BOUNDARY_BYTES / BYTES_PER_S
    trip_s = sum(factors) * (FORWARD_S + BACKWARD_S) + 2 * (stages - 1) * (latency_s + transfer_s)
    largest = (MAX_STALENESS + 1) * update_every
    planned = min(math.ceil(trip_s / period_s) + 2, largest) if asynchronous else update_every
    each = [
        VirtualStage(factor * FORWARD_S, factor * BACKWARD_S, UPDATE_S, 0.0, 0.0, BOUNDARY_BYTES, BOUNDARY_BYTES)
        for factor in factors
    ]
    fleet = VirtualFleet(
        clusters=(VirtualCluster("c0", planned, tuple(each)),),
        update_every=update_every,
        max_staleness=MAX_STALENESS if asynchronous else 0,
        schedule=schedule,
        default_link=LinkShape(BYTES_PER_S, latency_s),
        largest_window=largest if asynchronous else None,
    )
    result = VirtualRun(fleet).run(stop_samples=micro_batches)
    tuned_s = max((at_s for at_s, _, _ in result.windows), default=0.0)
    from_s = tuned_s + 3 * trip_s if asynchronous else 0.0
    slowest = f"c0.s{slow or 0}"
    return Row(
        stages=stages,
        slow_stage=slow,
        schedule=schedule,
        update_every=update_every,
        latency_s=latency_s,
        window=(planned, result.windows[-1][2] if result.windows else planned),
        busy=result.busy_share(slowest, from_s, result.drain_s),
        micro_batches_per_s=result.samples_per_s(from_s, result.drain_s),
        max_staleness=max(result.fleet_staleness()),
    )


def table(found: Sequence[Row]) -> Table:
    return Table(
        title="Schedules in the virtual clock",
        columns=("stages", "slow", "schedule", "U", "latency, ms", "window", "slowest stage busy", "micro-batches/s"),
        rows=[
            (
                each.stages,
                "none" if each.slow_stage is None else f"stage {each.slow_stage}, {SLOWER:g}x",
                each.schedule,
                each.update_every,
                round(1000 * each.latency_s),
                f"{each.window[0]} -> {each.window[1]}" if each.schedule == "async" else str(each.window[0]),
                f"{each.busy:.1%}",
                round(each.micro_batches_per_s, 2),
            )
            for each in found
        ],
    )


def main() -> None:
    """Print the table."""
    shown = table(rows())
    for line in (shown.columns, *shown.rows):
        print(" | ".join(str(cell) for cell in line))


if __name__ == "__main__":
    main()
