"""Is a plan ever worth less than that of a part of its fleet?

Random fleets of unequal nodes in badly joined regions are planned, and so is each part of theirs that the search names
(cluster_planner/search/fleet_parts.py): every region alone, the fleet without one region, without its slowest node by
speed or by links, its fastest parts; and each node by itself. Decides the ranges. All by the planner's own objective.

All fleets take about an hour of a core. So some can be measured by themselves; the others keep their rows, each with
its commit.
"""

import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

import numpy as np

from cluster_planner import Fleet, ModelCosts, Node, NoFeasiblePlan, RegionLink, Unit, Workload, make_plan
from cluster_planner.search.fleet_parts import parts_of
from experiments.harness.report import Cell, Claim, Part, Table, commit

FLEETS = 16
NODES = (9, 41)
"""The least number of nodes of a fleet, and the first that is too large."""
AVERAGE_EVERY = (64, 512, 4096)
COLUMNS = (
    *("seed", "nodes", "average_every", "worth", "best part", "its worth over the whole's"),
    *("parts", "seconds", "commit"),
)


def random_case(seed: int) -> tuple[Fleet, ModelCosts, Workload]:
    """Unequal nodes in two to four regions, some of them badly joined, and a model of eight units that most hold."""
    random = np.random.default_rng(seed)
    regions = [f"r{i}" for i in range(random.integers(2, 5))]
    nodes = tuple(
        Node(
            name=f"n{i}",
            flops_per_s=float(random.uniform(2e9, 3e10)),
            memory_bytes=round(random.uniform(2e8, 9e8)),
            up_bytes_per_s=float(random.choice([3e5, 2.5e6, 2.5e7])),
            down_bytes_per_s=float(random.choice([2.5e6, 5e7])),
            region=regions[i % len(regions)],
        )
        for i in range(random.integers(*NODES))
    )
    links = tuple(
        RegionLink(a, b, 0.003, 5e7)
        if a == b
        else RegionLink(a, b, float(random.uniform(0.02, 0.2)), float(random.choice([2.5e5, 2.5e6, 2.5e7])))
        for i, a in enumerate(regions)
        for b in regions[i:]
    )
    units = tuple(
        Unit(
            name=f"u{i}",
            flops=float(random.uniform(2e7, 2e8)),
            parameter_bytes=round(random.uniform(1e5, 4e6)),
            saved_bytes=10**5,
            boundary_bytes=30_000,
            boundary_gradient_bytes=30_000,
        )
        for i in range(8)
    )
    work = Workload(
        micro_batch=4,
        update_every=8,
        max_staleness=1,
        average_every=int(random.choice(AVERAGE_EVERY)),
        max_lag=1,
        optimizer_state_bytes_per_parameter_byte=2.0,
        process_bytes=10**8,
    )
    return Fleet(nodes, (), links), ModelCosts(units, "random"), work


def of_nodes(fleet: Fleet, numbers: tuple[int, ...]) -> Fleet:
    """Return the part of a fleet that has these nodes."""
    nodes = tuple(fleet.nodes[i] for i in numbers)
    here = {node.region for node in nodes}
    return replace(fleet, nodes=nodes, regions=tuple(r for r in fleet.regions if {r.a, r.b} <= here))


def _parts(fleet: Fleet) -> Iterator[tuple[str, tuple[int, ...]]]:
    everyone = tuple(range(len(fleet.nodes)))
    yield from parts_of(fleet, everyone)
    yield from ((f"{name} alone", (i,)) for i, name in enumerate(fleet.names))


def _worth(fleet: Fleet, costs: ModelCosts, work: Workload) -> float:
    try:
        return make_plan(fleet, costs, work, job={}, job_file="job.yaml").predicted.objective
    except NoFeasiblePlan:
        return 0.0


def _case(seed: int) -> list[Cell]:
    """Return the row of one fleet."""
    began_s = time.process_time()
    fleet, costs, work = random_case(seed)
    whole = _worth(fleet, costs, work)
    spent_s = time.process_time() - began_s
    most, words, parts = 0.0, "none", list(_parts(fleet))
    for name, part in parts:
        most, words = max((most, words), (_worth(of_nodes(fleet, part), costs, work), name))
        if len(part) > 1:
            said = f"seed {seed}, {name}: {most / whole if whole > 0 else 0:.4f} at most by now"
            print(f"never_worse: {said}; {time.process_time() - began_s:.0f} s", file=sys.stderr, flush=True)
    share = most / whole if whole > 0 else 1.0 + (most > 0)
    return [seed, len(fleet.nodes), work.average_every, whole, words, share, len(parts), spent_s, commit()]


def measure(
    *, quick: bool, asked: Collection[int] = (), earlier: Callable[[], Sequence[Sequence[Cell]]] = list
) -> Part:
    """The fleets of the seeds that are asked for, or all; with `quick` one.

    `earlier` returns the rows that were measured before, which stay unless their fleet is measured again. It is asked
    at the end, as another process may have measured other fleets meanwhile.
    """
    began_s = time.process_time()
    fresh = dict[int, Sequence[Cell]]()
    for seed in sorted(asked) or range(1 if quick else FLEETS):
        fresh[seed] = row = _case(seed)
        print("never_worse:", *row, file=sys.stderr, flush=True)
    known = {int(row[0] or 0): row for row in earlier()} | fresh
    return _part([known[seed] for seed in sorted(known)], time.process_time() - began_s, quick=quick)


def _part(rows: Sequence[Sequence[Cell]], spent_s: float, *, quick: bool) -> Part:
    """Return what these rows say."""
    shares = [float(row[COLUMNS.index("its worth over the whole's")] or 0) for row in rows]
    worst, held = max(shares), max(shares) <= 1 + 1e-9
    said = "" if len(rows) == FLEETS else f" (of {len(rows)} of {FLEETS} fleets)"
    return Part(
        name="never_worse",
        title="Random fleets: the plan of the whole against those of its parts",
        claims=[
            Claim(
                "parts",
                f"worth of the best part over that of the whole, at most{said}",
                "≤ 1",
                f"{worst:.4f}; more than the whole's in {sum(share > 1 + 1e-9 for share in shares)} of {len(shares)}",
                held if quick or len(rows) == FLEETS or not held else None,
            )
        ],
        tables=[Table("By fleet", COLUMNS, rows)],
        panels=[],
        notes=[
            "Parts that are planned: regions alone, fleets without one region or without the slowest node, the fastest "
            "parts, and each node. `seconds`: processor time of planning the whole. Fleets may have been measured in "
            "several runs, so that each names its commit.",
            f"Processor time of the last run of this part: {spent_s:.0f} s.",
        ],
    )
