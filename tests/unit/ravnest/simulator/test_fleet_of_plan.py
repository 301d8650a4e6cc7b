from dataclasses import replace

import pytest

from cluster_planner import (
    Cluster,
    Fleet,
    ModelCosts,
    Node,
    Plan,
    RegionLink,
    Ring,
    Stage,
    Unit,
    Workload,
    make_plan,
)
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.predict.prediction import predict
from ravnest.driver.ring_specs import ring_spec
from ravnest.simulator.fleet_of_plan import MOST_JUDGED, fleet_of_plan
from ravnest.simulator.virtual_run import VirtualRun
from ring_timing.layout import CHUNK_SECONDS, LEAST_CHUNK_BYTES
from ring_allreduce.ring.wire_forms import Wire


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
    return make_plan(fleet, ModelCosts(units, "fingerprint"), Workload(**work), job={}, job_file="job.yaml")


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


@pytest.mark.parametrize("clusters", [2, 5, 20])
@pytest.mark.parametrize("up_bytes_per_s", [1e5, 6e5, 2.5e6, 1e8])
@pytest.mark.parametrize("parameter_bytes", [400_000, 8_000_000, 400_000_000])
@pytest.mark.parametrize(("wire", "averaged"), [("exact", 1.0), ("bfloat16", 0.5)])
def test_chunks_are_those_of_a_run(
    clusters: int, up_bytes_per_s: float, parameter_bytes: int, wire: Wire, averaged: float
) -> None:
    plan = averaging_plan(clusters, up_bytes_per_s, parameter_bytes, averaged)
    (ring,) = fleet_of_plan(plan).rings
    told = ring_spec(plan, plan.rings[0].members, "0", parameter_bytes // 4, wire)
    assert (ring.elements, ring.chunk_elements) == (told.elements, told.chunk_elements)
    longest = max(LEAST_CHUNK_BYTES, up_bytes_per_s * CHUNK_SECONDS)
    assert ring.chunk_elements * ring.element_bytes <= longest


@pytest.mark.parametrize("clusters", [20, MOST_JUDGED + 6])
def test_slow_members_of_a_ring_send_less_as_in_a_run(clusters: int) -> None:
    plan = averaging_plan(clusters, 2.5e6, 400_000_000)
    slow = tuple(replace(node, up_bytes_per_s=1e6) if i in (3, 4) else node for i, node in enumerate(plan.fleet.nodes))
    plan = replace(plan, fleet=replace(plan.fleet, nodes=slow))
    (ring,) = fleet_of_plan(plan).rings
    assert ring.shares is not None
    assert ring.shares == ring_spec(plan, plan.rings[0].members, "0", 100_000_000, "exact").shares
