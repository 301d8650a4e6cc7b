from dataclasses import replace

import pytest

from cluster_planner import Fleet, ModelCosts, Node, Plan, RegionLink, Unit, Workload, make_plan
from ravnest.pipeline.virtual import VirtualRun
from ravnest.pipeline.virtual_plan import fleet_of_plan


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
