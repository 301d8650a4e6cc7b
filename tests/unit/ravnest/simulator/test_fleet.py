import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest

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
    links_of_ring,
    make_plan,
    predict,
)
from cluster_planner.rings import exchange_of
from ravnest.driver.stage_setups import ring_spec
from ravnest.simulator.fleet import fleet_of_plan
from ravnest.simulator.run import VirtualRun
from ring_allreduce.ring import RobustRule
from ring_timing import Groups, hop_bytes, shares_from_hops


@cache  # many files ask for it when they are collected, and to plan takes a second
def home_plan(**changes: object) -> Plan:
    speeds = (60e9, 50e9, 40e9, 25e9, 20e9, 15e9)
    fleet = Fleet(
        nodes=tuple(
            Node(
                name=f"n{i}",
                flops_per_s=speed,
                memory_bytes=10**9,
                up_bytes_per_s=2.5e7,
                down_bytes_per_s=6e7,
                region="fra" if i < 3 else "iad",
            )
            for i, speed in enumerate(speeds)
        ),
        links=(),
        regions=(
            RegionLink("fra", "iad", 0.04, 3.75e7),
            RegionLink("fra", "fra", 0.002, 1e8),
            RegionLink("iad", "iad", 0.003, 1e8),
        ),
    )
    units = tuple(
        Unit(
            name=f"u{i}",
            flops=1e8,
            parameter_bytes=10**5,
            saved_bytes=10**5,
            boundary_bytes=10**4,
            boundary_gradient_bytes=10**4,
        )
        for i in range(8)
    )
    work = {
        "micro_batch": 4,
        "update_every": 8,
        "max_staleness": 1,
        "average_every": 2048,
        "max_lag": 1,
        "optimizer_state_bytes_per_parameter_byte": 2.0,
        "process_bytes": 10**8,
        **changes,
    }
    costs = ModelCosts(units, "fingerprint")
    return make_plan(fleet, costs, Workload(**work), job={}, job_file="job.yaml", min_stages=2)


def test_a_plan_reads_as_a_fleet() -> None:
    plan = home_plan()
    fleet = fleet_of_plan(plan)
    assert [cluster.name for cluster in fleet.clusters] == [cluster.name for cluster in plan.clusters]
    for planned, virtual, predicted in zip(plan.clusters, fleet.clusters, plan.predicted.clusters, strict=True):
        assert virtual.window == planned.window
        for stage, times, expected in zip(planned.stages, virtual.stages, predicted.stages, strict=True):
            units = stage.units[1] - stage.units[0]
            assert times.forward_s == units * 1e8 * 4 / plan.fleet.node(stage.node).flops_per_s
            per_micro_batch = times.forward_s + times.backward_s + times.update_s / 8
            assert abs(per_micro_batch - expected.compute_s) < 1e-12
            assert times.gradient_bytes == (40_000 if stage.units[0] else 0)
    assert sum(ring.elements for ring in fleet.rings) * 4 == 8 * 10**5
    for (a, b), link in fleet.links.items():
        assert a != b
        assert link.bytes_per_s <= 2.5e7


SYNCHRONOUS = [{"schedule": name, "max_staleness": 0, "update_every": 4} for name in ("1f1b", "gpipe")]


@pytest.mark.parametrize("changes", [{}, *SYNCHRONOUS], ids=str)
def test_the_virtual_run_agrees_with_the_prediction(changes: dict[str, object]) -> None:
    plan = home_plan(**changes)
    result = VirtualRun(fleet_of_plan(plan)).run(stop_samples=16_000)
    measured = result.samples_per_s(0.2 * result.drain_s, result.drain_s)
    assert abs(measured / plan.predicted.samples_per_s - 1) < 0.05


def test_a_job_that_clips_waits_for_its_norms_as_a_run_does() -> None:
    plan = home_plan(max_staleness=0)
    clipping = replace(plan, job={"optimizer": {"clip_norm": 1.0}})
    assert not fleet_of_plan(replace(plan, job={"optimizer": {"clip_norm": None}})).clip
    without, waiting = (VirtualRun(fleet_of_plan(each)).run(stop_samples=2_000) for each in (plan, clipping))
    assert waiting.end_s > without.end_s


def averaging_plan(clusters: int, up_bytes_per_s: float, parameter_bytes: int, averaged: float = 1.0) -> Plan:
    """Clusters of one node, all alike, that average one unit."""
    nodes = tuple(
        Node(
            name=f"n{i}",
            flops_per_s=1e9,
            memory_bytes=10**12,
            up_bytes_per_s=up_bytes_per_s,
            down_bytes_per_s=5 * up_bytes_per_s,
            region="home",
        )
        for i in range(clusters)
    )
    fleet = Fleet(nodes, (), (RegionLink("home", "home", 0.02, 1e9),))
    unit = Unit(
        name="u",
        flops=1e8,
        parameter_bytes=parameter_bytes,
        saved_bytes=1,
        boundary_bytes=1,
        boundary_gradient_bytes=1,
    )
    work = Workload(
        micro_batch=4,
        update_every=8,
        max_staleness=1,
        average_every=2048,
        max_lag=1,
        optimizer_state_bytes_per_parameter_byte=2.0,
        averaged_bytes_per_parameter_byte=averaged,
        process_bytes=10**8,
    )
    placed = tuple(Cluster(f"c{i}", 1, (Stage(f"n{i}", (0, 1)),)) for i in range(clusters))
    costs = ModelCosts((unit,), "generated")
    ring = Ring((0, 1), tuple((cluster.name, 0) for cluster in placed))
    return Plan(
        clusters=placed,
        rings=(ring,),
        spares=(),
        predicted=predict(fleet, SpanCosts(costs, work), placed, (ring,)).prediction,
        fleet=fleet,
        costs=costs,
        workload=work,
        job={},
        job_file="generated",
        seed=0,
    )


def with_uplinks(plan: Plan, up_bytes_per_s: Sequence[float]) -> Plan:
    nodes = tuple(replace(node, up_bytes_per_s=up) for node, up in zip(plan.fleet.nodes, up_bytes_per_s, strict=True))
    return replace(plan, fleet=replace(plan.fleet, nodes=nodes))


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("robust", [None, "trimmed_mean"])
@pytest.mark.parametrize("hierarchical", [False, True])
def test_run_simulator_and_prediction_divide_a_ring_alike(
    seed: int, robust: RobustRule | None, hierarchical: bool
) -> None:
    draw = random.Random(seed)
    clusters = draw.choice([2, 3, 5, 20, 70] if robust is None else [2, 3, 5, 8])
    wire, averaged = draw.choice([("exact", 1.0), ("bfloat16", 0.5), ("int8", (1 + 4 / 256) / 4)])
    plan = averaging_plan(clusters, 1e6, int(10 ** draw.uniform(2.0, 8.6)), averaged)
    plan = with_uplinks(plan, [draw.choice([1e5, 1e6, 1e7]) * draw.uniform(1, 2) for _ in range(clusters)])
    plan = replace(
        plan, workload=replace(plan.workload, robust_averaging=robust is not None, hierarchical_averaging=hierarchical)
    )
    (ring,), spans = fleet_of_plan(plan).rings, SpanCosts(plan.costs, plan.workload)
    members = plan.rings[0].members
    told = ring_spec(plan, members, "0", ring.elements, wire, robust)
    assert (ring.direct, ring.shares, ring.chunk_elements) == (told.direct, told.shares, told.chunk_elements)
    assert ring.groups == told.groups
    nodes, each = [f"n{i}" for i in range(clusters)], robust is not None
    rules = {"each": each, "hierarchical": hierarchical}
    exchange = exchange_of(plan.fleet, nodes, ring.elements, ring.element_bytes, **rules)
    assert told.robust == robust
    assert ring.each == each
    if told.direct:
        assert len(exchange.pairs) == clusters * (clusters - 1)
    elif told.groups is not None:
        traffic = Groups(clusters, told.groups).traffic(int(ring.elements * ring.element_bytes))
        assert exchange.sent_bytes.tolist() == list(traffic.values())
    else:
        n_bytes = int(ring.elements * ring.element_bytes)
        assert tuple(exchange.sent_bytes.tolist()) == hop_bytes(n_bytes, clusters, told.shares)
    predicted = predict(plan.fleet, spans, plan.clusters, plan.rings).prediction
    assert predicted.averaging_s >= exchange.sending_s
    if each:  # an uplink carries the whole vector once to each of the others
        slowest = min(node.up_bytes_per_s for node in plan.fleet.nodes)
        assert predicted.averaging_s >= (clusters - 1) * int(ring.elements * ring.element_bytes) / slowest


def test_a_prediction_does_not_spare_hops_that_a_run_does_not() -> None:
    """Blocks are shorter than a chunk: one large block would take longer around than it saves on the slow hops."""
    plan = with_uplinks(averaging_plan(20, 2.5e6, 32_000), [1e5 if i in (3, 4) else 2.5e6 for i in range(20)])
    quick = tuple(replace(node, flops_per_s=1e12) for node in plan.fleet.nodes)
    plan = replace(plan, fleet=replace(plan.fleet, nodes=quick, regions=(RegionLink("home", "home", 0.002, 1e9),)))
    (ring,) = fleet_of_plan(plan).rings
    assert not ring.direct
    assert ring.shares is None
    assert shares_from_hops(links_of_ring(plan.fleet, [f"n{i}" for i in range(20)]).hop_bytes_per_s) is not None
    predicted = predict(plan.fleet, SpanCosts(plan.costs, plan.workload), plan.clusters, plan.rings).prediction
    virtual = VirtualRun(fleet_of_plan(plan), traced=False)
    virtual.run(stop_samples=25_000)
    first, *_, last = virtual.rounds.committed_s
    measured = plan.workload.average_every * (len(virtual.rounds.committed_s) - 1) / (last - first)
    assert measured == pytest.approx(predicted.samples_per_s, rel=0.05)


def test_a_large_ring_of_unequal_blocks_takes_as_long_in_the_simulation_as_was_predicted() -> None:
    """Hops wait for large blocks, which only a walk of the ring knows."""
    draw = random.Random(1)
    plan = with_uplinks(averaging_plan(20, 2.5e6, 4_000_000), [2.5e6 * draw.lognormvariate(0, 0.6) for _ in range(20)])
    quick = tuple(replace(node, flops_per_s=1e12) for node in plan.fleet.nodes)
    plan = replace(plan, fleet=replace(plan.fleet, nodes=quick))
    (ring,) = fleet_of_plan(plan).rings
    assert ring.shares is not None
    predicted = predict(plan.fleet, SpanCosts(plan.costs, plan.workload), plan.clusters, plan.rings).prediction
    exchange = exchange_of(plan.fleet, [f"n{i}" for i in range(20)], ring.elements, ring.element_bytes)
    assert exchange.stalls_s > 0.04 * exchange.sending_s
    assert predicted.averaging_s == pytest.approx(exchange.sending_s + exchange.stalls_s)
    virtual = VirtualRun(fleet_of_plan(plan), traced=False)
    virtual.run(stop_samples=25_000)
    first, *_, last = virtual.rounds.committed_s
    measured = plan.workload.average_every * (len(virtual.rounds.committed_s) - 1) / (last - first)
    assert measured == pytest.approx(predicted.samples_per_s, rel=0.02)


def test_a_robust_average_takes_as_long_in_the_simulation_as_was_predicted() -> None:
    plan = averaging_plan(5, 2.5e6, 2_000_000)
    quick = tuple(replace(node, flops_per_s=1e12) for node in plan.fleet.nodes)
    work = replace(plan.workload, robust_averaging=True)
    plan = replace(plan, workload=work, fleet=replace(plan.fleet, nodes=quick))
    predicted = predict(plan.fleet, SpanCosts(plan.costs, work), plan.clusters, plan.rings).prediction
    assert predicted.averaging_s == pytest.approx(4 * 2_000_000 / 2.5e6, rel=0.01)
    virtual = VirtualRun(fleet_of_plan(plan), traced=False)
    virtual.run(stop_samples=15_000)
    first, *_, last = virtual.rounds.committed_s
    measured = work.average_every * (len(virtual.rounds.committed_s) - 1) / (last - first)
    assert measured == pytest.approx(predicted.samples_per_s, rel=0.02)


def test_a_ring_of_rings_takes_as_long_in_the_simulation_as_was_predicted_and_less_than_one_ring() -> None:
    """A small vector among 60 members is bound by latency."""
    took = {}
    for hierarchical in (False, True):
        plan = averaging_plan(60, 2.5e6, 200_000)
        quick = tuple(replace(node, flops_per_s=1e12) for node in plan.fleet.nodes)
        work = replace(plan.workload, hierarchical_averaging=hierarchical)
        plan = replace(plan, workload=work, fleet=replace(plan.fleet, nodes=quick))
        (ring,) = fleet_of_plan(plan).rings
        assert (ring.groups is not None) == hierarchical
        predicted = predict(plan.fleet, SpanCosts(plan.costs, work), plan.clusters, plan.rings).prediction
        virtual = VirtualRun(fleet_of_plan(plan), traced=False)
        virtual.run(stop_samples=15_000)
        first, *_, last = virtual.rounds.committed_s
        measured = work.average_every * (len(virtual.rounds.committed_s) - 1) / (last - first)
        assert measured == pytest.approx(predicted.samples_per_s, rel=0.1)
        took[hierarchical] = predicted.averaging_s
    assert took[True] < took[False] / 3
