"""Random small fleets, models and workloads: what the planner is compared with brute force on. Decides the ranges."""

from dataclasses import replace

import numpy as np

from cluster_planner import Fleet, ModelCosts, Node, RegionLink, Unit, Workload

Case = tuple[Fleet, ModelCosts, Workload]


def tight_case(seed: int, most_nodes: int = 6) -> Case:
    """A small case of 1f1b in tight memory."""
    fleet, costs, work = small_case(seed, most_nodes)
    return _tight(fleet, work), costs, replace(work, schedule="1f1b", max_staleness=0)


def recomputing_case(seed: int, most_nodes: int = 6) -> Case:
    """A small asynchronous case in tight memory, in which stages may recompute."""
    fleet, costs, work = small_case(seed, most_nodes)
    return _tight(fleet, work), costs, replace(work, activation_checkpointing="auto")


def starving_case(seed: int, most_nodes: int = 6) -> Case:
    """A small case with rounds of 64 samples, for which its links have too little room."""
    fleet, costs, work = small_case(seed, most_nodes)
    return fleet, costs, replace(work, average_every=64)


HARD = {
    "1f1b in tight memory": tight_case,
    "rounds that starve": starving_case,
    "recomputing in tight memory": recomputing_case,
}


def hard_kind(seed: int) -> str:
    """Return which of HARD the case of this seed is: they take turns."""
    return list(HARD)[seed % len(HARD)]


def hard_case(seed: int, most_nodes: int = 7) -> Case:
    """These hard cases in turn."""
    return HARD[hard_kind(seed)](seed // len(HARD), most_nodes)


def _tight(fleet: Fleet, work: Workload) -> Fleet:
    """Return the fleet whose nodes have a fifth of their memory, beside what the process takes."""
    nodes = tuple(
        replace(node, memory_bytes=round(work.process_bytes + 0.2 * (node.memory_bytes - work.process_bytes)))
        for node in fleet.nodes
    )
    return replace(fleet, nodes=nodes)


def small_case(seed: int, most_nodes: int = 7) -> Case:
    """3 to `most_nodes` nodes in up to three places, unequal in everything, and 5 to 7 unequal units."""
    random = np.random.default_rng(seed)

    def one_of(*values: float) -> float:
        return float(random.choice(values))

    places = [f"p{i}" for i in range(random.integers(1, 4))]
    nodes = tuple(
        Node(
            name=f"n{i}",
            flops_per_s=float(random.uniform(1e9, 2e10)),
            memory_bytes=round(random.uniform(1.5e8, 8e8)),
            up_bytes_per_s=one_of(5e5, 1.25e6, 5e6, 1.25e7),
            down_bytes_per_s=one_of(6e6, 1.25e7, 2.5e7),
            region=str(random.choice(places)),
        )
        for i in range(random.integers(3, most_nodes + 1))
    )
    used = sorted({node.region for node in nodes if node.region is not None})
    regions = tuple(
        RegionLink(a, b, 0.003 if a == b else float(random.uniform(0.01, 0.15)), one_of(2.5e6, 1.25e7))
        for i, a in enumerate(used)
        for b in used[i:]
    )
    units = tuple(
        Unit(
            name=f"u{i}",
            flops=float(random.uniform(2e7, 4e8)),
            parameter_bytes=round(random.uniform(1e5, 8e6)),
            saved_bytes=round(random.uniform(1e5, 1e6)),
            boundary_bytes=(alive := round(random.uniform(5e3, 1e5))),
            boundary_gradient_bytes=alive,
        )
        for i in range(random.integers(5, 8))
    )
    work = Workload(
        micro_batch=int(random.choice([1, 4, 8])),
        update_every=int(random.choice([2, 8, 16])),
        max_staleness=int(random.integers(0, 3)),
        average_every=int(random.choice([1024, 4096, 16384])),
        max_lag=1,
        optimizer_state_bytes_per_parameter_byte=2.0,
        process_bytes=10**8,
    )
    return Fleet(nodes, (), regions), ModelCosts(units, "small"), work
