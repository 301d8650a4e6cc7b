"""More machines never make a worse plan: no part of a fleet that the search can name is worth more by itself."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from cluster_planner.errors import NoFeasiblePlan
from cluster_planner.inputs.fleet import Fleet, Node
from cluster_planner.inputs.links import RegionLink
from cluster_planner.inputs.model_costs import ModelCosts, Unit, Workload
from cluster_planner.planner import make_plan
from cluster_planner.search.cluster_search import FEW_NODES
from cluster_planner.search.fleet_parts import parts_of


def random_fleet(random: np.random.Generator, count: int = 8) -> Fleet:
    """Unequal nodes in two or three regions, some of them badly joined. Of 8, every part has few enough to be
    searched.
    """
    regions = [f"r{i}" for i in range(random.integers(2, 4))]
    nodes = tuple(
        Node(
            name=f"n{i}",
            flops_per_s=float(random.uniform(2e9, 3e10)),
            memory_bytes=round(random.uniform(2e8, 9e8)),
            up_bytes_per_s=float(random.choice([3e5, 2.5e6, 2.5e7])),
            down_bytes_per_s=float(random.choice([2.5e6, 5e7])),
            region=regions[i % len(regions)],
        )
        for i in range(count)
    )
    links = tuple(
        RegionLink(a, b, 0.003, 5e7)
        if a == b
        else RegionLink(a, b, float(random.uniform(0.02, 0.2)), float(random.choice([2.5e5, 2.5e6, 2.5e7])))
        for i, a in enumerate(regions)
        for b in regions[i:]
    )
    return Fleet(nodes, (), links)


def random_model(random: np.random.Generator) -> ModelCosts:
    units = tuple(
        Unit(
            name=f"u{i}",
            flops=float(random.uniform(5e7, 3e8)),
            parameter_bytes=round(random.uniform(2e5, 6e6)),
            saved_bytes=10**5,
            boundary_bytes=30_000,
            boundary_gradient_bytes=30_000,
        )
        for i in range(4)
    )
    return ModelCosts(units, "random")


def parts_and_nodes(fleet: Fleet, least: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Each region alone, the fleet without one region and without its slowest, and its fastest parts. Where clusters
    may have one stage: each node, and only parts of up to four, since searching the others takes seconds.
    """
    everyone = tuple(range(len(fleet.nodes)))
    most = 4 if least == 1 else len(everyone)
    yield from ((words, part) for words, part in parts_of(fleet, everyone) if len(part) <= most)
    if least == 1:
        yield from ((fleet.names[i], (i,)) for i in everyone)


def part_of(fleet: Fleet, numbers: tuple[int, ...]) -> Fleet:
    nodes = tuple(fleet.nodes[i] for i in numbers)
    here = {node.region for node in nodes}
    return replace(fleet, nodes=nodes, regions=tuple(r for r in fleet.regions if {r.a, r.b} <= here))


@pytest.mark.parametrize(("seed", "least"), [(1, 2), (4, 1)])
def test_no_part_is_worth_more_than_the_whole(seed: int, least: int, make_workload: Callable[..., Workload]) -> None:
    random = np.random.default_rng(seed)
    fleet, costs = random_fleet(random), random_model(random)
    work = make_workload(average_every=int(random.choice([64, 512, 4096])), update_every=8)

    def worth(some: Fleet) -> float:
        try:
            return make_plan(some, costs, work, job={}, job_file="job.yaml", min_stages=least).predicted.objective
        except NoFeasiblePlan:
            return 0.0

    whole = worth(fleet)
    for words, numbers in parts_and_nodes(fleet, least):
        assert worth(part_of(fleet, numbers)) <= whole * (1 + 1e-9), words


@pytest.mark.parametrize(("seed", "count", "least"), [(1, 12, 1), (3, 40, 2)])
def test_no_region_and_no_node_of_a_larger_fleet_is_worth_more(
    seed: int, count: int, least: int, make_workload: Callable[..., Workload]
) -> None:
    """Seed 1 without its slowest node by links was worth 1.003 times the whole while such parts were not searched."""
    random = np.random.default_rng(seed)
    fleet, costs = random_fleet(random, count), random_model(random)
    work = make_workload(average_every=int(random.choice([64, 512, 4096])), update_every=8)

    def worth(some: Fleet) -> float:
        try:
            return make_plan(some, costs, work, job={}, job_file="job.yaml", min_stages=least).predicted.objective
        except NoFeasiblePlan:
            return 0.0

    whole = worth(fleet)
    everyone = tuple(range(count))
    parts = [(words, part) for words, part in parts_of(fleet, everyone) if words.endswith("alone")]
    if count <= FEW_NODES:
        parts += [
            (words, part) for words, part in parts_of(fleet, everyone) if "the slowest" in words or "75%" in words
        ]
    parts += [(fleet.names[i], (i,)) for i in everyone if least == 1]
    for words, part in parts:
        assert worth(part_of(fleet, part)) <= whole * (1 + 1e-9), words
