from pathlib import Path

import pytest

from cluster_planner import load_plan, save_plan, validate
from experiments.fidelity.plans import job_folder, pairs, plan_of
from experiments.fidelity.sites import Site, sites
from experiments.harness.paced_model import MICRO_BATCH


@pytest.fixture(scope="module")
def job_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return job_folder(tmp_path_factory.mktemp("job"))


@pytest.mark.parametrize("site", sites(1), ids=lambda site: site.name)
def test_every_site_becomes_a_plan_that_is_valid_and_survives_its_file(site: Site, job_file: Path) -> None:
    plan = plan_of(site, job_file)
    validate(plan)
    path = job_file.with_name("plan.yaml")
    save_plan(plan, path)
    assert load_plan(path).predicted == plan.predicted
    steps = [node.step_s for node in site.nodes]
    planned = [stage.compute_s for cluster in plan.predicted.clusters for stage in cluster.stages]
    assert planned == pytest.approx(steps, rel=0.05)  # and the update's share
    assert all(a >= b for a, b in zip(planned, steps, strict=True))
    assert [node.address for node in plan.fleet.nodes] == [f"10.77.0.{1 + index}" for index in range(len(steps))]
    for cluster, predicted in zip(plan.clusters, plan.predicted.clusters, strict=True):
        slowest = max(node.step_s for node in site.nodes if f"c{node.cluster}" == cluster.name)
        assert predicted.samples_per_s <= MICRO_BATCH / slowest
    for a, b, one_way_s in pairs(site):
        assert plan.fleet.link(a, b).latency_s == one_way_s
        flow = min(plan.fleet.node(a).up_bytes_per_s, plan.fleet.node(b).down_bytes_per_s)
        assert plan.fleet.flow_bytes_per_s(a, b) == flow  # no pair is slower than its ends: the lab has no such links


def test_the_plans_differ_in_what_limits_them(job_file: Path) -> None:
    words = [plan_of(site, job_file).predicted.clusters[0].bottleneck for site in sites(1)]
    assert any("speed" in each for each in words)
    assert any("uplink" in each for each in words)
