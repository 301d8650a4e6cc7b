import math
from types import SimpleNamespace

import pytest

from cluster_planner import Fleet, ModelCosts, Node, Unit
from ravnest.errors import InvalidInput
from ravnest.job.config import Job, load_job
from ravnest.planning import prepare_plan as planning
from ravnest.planning.warmup import check_warmup, most_samples, unreached_warmup
from ravnest.planning.workload import workload
from tests.support.local import JOB_FILE, setups_of, tiny_job

KEY = "optimizer.schedule.warmup_updates"
MINUTE = {"minutes": 1}


def job_of(name: str = "constant", **changes: object) -> Job:
    return tiny_job(
        optimizer={"name": "sgd", "lr": 0.1, "schedule": {"name": name, "warmup_updates": 20}},
        micro_batch=4,
        update_every=2,
        **changes,
    )


def fleet_of(*flops_per_s: float) -> Fleet:
    return Fleet(
        tuple(
            Node(name=f"n{i}", flops_per_s=speed, memory_bytes=10**9, up_bytes_per_s=1e6, down_bytes_per_s=1e6)
            for i, speed in enumerate(flops_per_s)
        )
    )


@pytest.mark.parametrize("name", ["constant", "cosine"])
def test_a_warm_up_that_no_plan_reaches_the_end_of_is_refused(name: str) -> None:
    job = job_of(name)
    check_warmup(job, JOB_FILE, None, 1)
    check_warmup(job, JOB_FILE, 21 * 8, 1)
    with pytest.raises(InvalidInput) as caught:
        check_warmup(job, JOB_FILE, 19 * 8, 1)
    assert (caught.value.path, caught.value.key) == (str(JOB_FILE), KEY)


def test_where_several_clusters_are_demanded_one_has_to_reach_the_end_and_all_where_the_rate_falls_then() -> None:
    check_warmup(job_of(), JOB_FILE, 21 * 8, 3)
    check_warmup(job_of("linear"), JOB_FILE, 3 * 21 * 8, 3)
    with pytest.raises(InvalidInput, match="20 warm-up updates leave none to decay over") as caught:
        check_warmup(job_of("linear"), JOB_FILE, 3 * 20 * 8, 3)
    assert caught.value.key == KEY


def test_what_a_fleet_makes_at_most_is_bound_by_the_speed_of_all_its_machines() -> None:
    job, fleet = job_of(stop=MINUTE), fleet_of(3e9, 1e9)
    unit = Unit(name="u", flops=1e6, parameter_bytes=0, saved_bytes=0, boundary_bytes=0, boundary_gradient_bytes=0)
    found = most_samples(job, fleet, ModelCosts((unit, unit), "mark"), workload(job))
    assert found == pytest.approx(60 * 4e9 / (2 * 3 * 1e6))
    assert most_samples(job_of(), fleet, ModelCosts((unit,), "mark"), workload(job)) is None


def test_a_warm_up_that_no_plan_ends_in_its_minutes_is_refused_before_the_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A machine of one FLOP a second makes no sample in a minute."""

    def searched(*_: object, **__: object) -> object:
        raise AssertionError

    monkeypatch.setattr(planning, "make_plan", searched)
    optimizer = {"name": "sgd", "lr": 0.1, "schedule": {"name": "constant", "warmup_updates": 2}}
    job = tiny_job(optimizer=optimizer, stop=MINUTE)
    job = load_job(JOB_FILE).model_copy(update={"optimizer": job.optimizer, "stop": job.stop})
    with pytest.raises(InvalidInput) as caught:
        planning.prepare_plan(fleet_of(1.0), job, step=lambda words: None)
    assert (caught.value.path, caught.value.key) == (str(JOB_FILE), KEY)


def test_minutes_that_are_predicted_to_end_in_the_warm_up_are_told_of() -> None:
    job = job_of(stop=MINUTE)

    def plan(samples_per_s: float) -> object:
        clusters = (SimpleNamespace(samples_per_s=samples_per_s / 2), SimpleNamespace(samples_per_s=samples_per_s))
        return SimpleNamespace(predicted=SimpleNamespace(clusters=clusters))

    assert unreached_warmup(job, plan(8 * 20 / 60 + 0.01), None) is None  # type: ignore[arg-type]
    said = unreached_warmup(job, plan(8 * 20 / 60 - 0.01), None)  # type: ignore[arg-type]
    assert said is not None
    assert "after 19 updates of a cluster, in the middle of 20 of warm-up" in said
    assert unreached_warmup(job_of(), plan(1e-9), None) is None  # type: ignore[arg-type]


def test_samples_of_which_no_cluster_has_enough_for_its_warm_up_are_told_of() -> None:
    _, plan = setups_of(tiny_job(), parts=(2, 2))
    share = max(end - begin for begin, end in (plan.share(cluster.name) for cluster in plan.clusters))
    just = math.ceil(20 * 8 / share)
    assert unreached_warmup(job_of(), plan, just + 1) is None
    assert "after 19 updates of a cluster" in str(unreached_warmup(job_of(), plan, just - 8))
