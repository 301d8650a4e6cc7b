"""Fleets of home machines from a seed, and plans for them. Pure but for the seeded generator.

Decides a grouping by itself, so that it is the same whatever the planner finds: clusters of nodes of one
region and of like speed, equal spans. The prediction is the planner's own (cluster_planner.predict.prediction).
"""

import random
from collections.abc import Mapping
from itertools import combinations_with_replacement
from typing import Any

from cluster_planner import (
    Cluster,
    Fleet,
    ModelCosts,
    Node,
    Plan,
    RegionLink,
    Ring,
    SpanCosts,
    Stage,
    Unit,
    Workload,
    bottleneck_s,
    loads_of,
    predict,
    round_trip_s,
    wanted_window,
)

REGIONS = 6
UP_MBIT_S = (20.0, 0.6)
"""Median, and the standard deviation of its logarithm; likewise below. Downlinks are five times as fast."""
SPEED_FLOPS = (4e12, 0.5)
NEAR_LATENCY_S = (0.004, 0.015)
FAR_LATENCY_S = (0.015, 0.110)
JITTER_S = 0.003
MBIT = 1e6 / 8

SEGMENT_BYTES = 8_000_000
"""Of parameters, of each unit: 2 million of them."""
BOUNDARY_BYTES = 40_000
"""Of a sample."""
FLOPS = 4e10
MICRO_BATCH = 8
UPDATE_EVERY = 16
SAMPLES_PER_CLUSTER = 2048
"""Between two rounds."""


def home_plan(
    nodes: int,
    stages: int,
    seed: int,
    *,
    samples_per_cluster: int = SAMPLES_PER_CLUSTER,
    segment_bytes: int = SEGMENT_BYTES,
    short: Mapping[str, Any] | None = None,
) -> Plan:
    """A plan of `nodes` home machines in clusters of `stages`; the model grows with the stages: one unit each.

    `short`: what of the job's workload differs, such as the forms in which numbers travel.
    """
    chance = random.Random(f"{seed}/{nodes}/{stages}")
    fleet = _fleet(nodes, chance)
    clusters = nodes // stages
    by_place = sorted(fleet.nodes, key=lambda node: (node.region or "", node.flops_per_s))
    units = tuple(
        Unit(
            name=f"block{index}",
            flops=FLOPS,
            parameter_bytes=segment_bytes,
            saved_bytes=4 * BOUNDARY_BYTES,
            boundary_bytes=BOUNDARY_BYTES,
            boundary_gradient_bytes=BOUNDARY_BYTES,
        )
        for index in range(stages)
    )
    work = Workload(
        micro_batch=MICRO_BATCH,
        update_every=UPDATE_EVERY,
        max_staleness=1,
        average_every=samples_per_cluster * clusters,
        max_lag=1,
        optimizer_state_bytes_per_parameter_byte=2.0,
        process_bytes=10**8,
        **(short or {}),
    )
    costs = ModelCosts(units, "generated")
    spans = SpanCosts(costs, work)
    placed = []
    for index in range(clusters):
        members = by_place[index * stages : (index + 1) * stages]
        line = tuple(Stage(node.name, (unit, unit + 1)) for unit, node in enumerate(members))
        bottleneck = bottleneck_s(fleet, line, loads_of(fleet, spans, line), 0.0)
        window = wanted_window(bottleneck, round_trip_s(fleet, spans, line), work)
        placed.append(Cluster(f"c{index}", window, line))
    rings = tuple(Ring((unit, unit + 1), tuple((cluster.name, unit) for cluster in placed)) for unit in range(stages))
    return Plan(
        clusters=tuple(placed),
        rings=rings,
        spares=(),
        predicted=predict(fleet, spans, placed, rings).prediction,
        fleet=fleet,
        costs=costs,
        workload=work,
        job={},
        job_file="generated",
        seed=seed,
    )


def _fleet(count: int, chance: random.Random) -> Fleet:
    names = [f"region{index}" for index in range(REGIONS)]
    regions = []
    for a, b in combinations_with_replacement(names, 2):
        latency_s = chance.uniform(*(NEAR_LATENCY_S if a == b else FAR_LATENCY_S))
        regions.append(RegionLink(a, b, latency_s, 200 * MBIT, JITTER_S))
    nodes = []
    for index in range(count):
        up = chance.lognormvariate(0.0, UP_MBIT_S[1]) * UP_MBIT_S[0] * MBIT
        nodes.append(
            Node(
                name=f"n{index}",
                flops_per_s=chance.lognormvariate(0.0, SPEED_FLOPS[1]) * SPEED_FLOPS[0],
                memory_bytes=16 * 10**9,
                up_bytes_per_s=up,
                down_bytes_per_s=5 * up,
                region=names[index % REGIONS],
            )
        )
    return Fleet(tuple(nodes), (), tuple(regions))
