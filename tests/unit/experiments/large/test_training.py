from dataclasses import replace

import pytest

from experiments.large.training import JOB_FILE, LARGEST, Trained, job_of, part_of, peaks, plan_of
from experiments.large.watched_run import Process, driver_of
from ravnest.job.materials import capture_job, load_data

GOOD = Trained(
    parameters=LARGEST,
    stages={"c0.s0": (900, 1000), "resumed c0.s0": (990, 1000)},
    drivers=(500 << 20, 700 << 20),
    updates_per_s=0.5,
    writing_s=20.0,
    lost=0.04,
    written_share=0.5,
    losses=(5.0, 2.0),
    loaded={"loss": 2.0001, "numbers": LARGEST, "missing_keys": [], "unexpected_keys": [], "mismatched_keys": []},
)


def verdicts(*found, quick=False):
    return {claim.name: claim.held for claim in part_of(found, quick=quick).claims}


def test_what_holds_is_said_to_hold():
    assert set(verdicts(GOOD).values()) == {True}
    assert GOOD.total_lost == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("changes", "claim"),
    [
        ({"parameters": LARGEST - 1}, "size"),
        ({"drivers": (500 << 20, (700 << 20) + 1)}, "driver"),
        ({"stages": {"c0.s0": (1001, 1000)}}, "stages"),
        ({"lost": 0.06, "written_share": 0.5}, "lost meanwhile"),
        ({"loaded": {**GOOD.loaded, "missing_keys": ["lm_head.weight"]}}, "loads"),
        ({"loaded": {**GOOD.loaded, "loss": 2.001}}, "loss"),
    ],
)
def test_what_does_not_hold_is_said_alone(changes, claim):
    found = verdicts(GOOD, replace(GOOD, **changes)) if claim != "size" else verdicts(replace(GOOD, **changes))
    assert [name for name, held in found.items() if held is False] == [claim]


def test_without_anything_to_compare_with_no_cost_is_claimed():
    found = verdicts(replace(GOOD, lost=None))
    assert (found["lost meanwhile"], found["lost in all"]) == (None, None)
    assert verdicts(GOOD, quick=True)["lost meanwhile"] is None


def test_stages_are_paired_with_what_one_cluster_of_so_many_is_planned_to_take():
    job = job_of(200_000, 3)
    assert job.stop.samples == 3 * job.average_every
    plan = plan_of(job, capture_job(job, JOB_FILE, load_data(job, JOB_FILE)), 3)
    (cluster,) = plan.clusters
    assert len(cluster.stages) == 3
    processes = [Process("c0.s0", 1), Process("driver", 2), Process("c0.s2", 3)]
    planned = [stage.memory_bytes for stage in plan.predicted.clusters[0].stages]
    assert peaks(processes, plan, "resumed ") == {"resumed c0.s0": (1, planned[0]), "resumed c0.s2": (3, planned[2])}
    assert min(planned) > plan.workload.process_bytes
    assert driver_of(processes).peak == 2
