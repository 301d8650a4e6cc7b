import pytest

from ravnest.driver.instructions import RunPhase
from ravnest.driver.observe.report import NO_LIMIT, RunLimit
from ravnest.driver.session import run_control
from ravnest.driver.session_keys import run_keys
from ravnest.driver.stage_setups import stage_setups
from ravnest.stage import messages as m
from tests.support.local import captured_job, setups_of, tiny_job


def test_the_keys_of_an_encrypted_run_reach_each_stage_and_no_text() -> None:
    job = tiny_job()
    _, plan = setups_of(job, parts=(2, 1))
    keys = run_keys(["c0.s0", "c0.s1", "c1.s0", "driver"])
    setups = stage_setups(
        plan,
        job,
        captured_job(job),
        search_dirs=[],
        threads=dict.fromkeys((node.name for node in plan.fleet.nodes), 1),
        total_samples=240,
        token=bytes(16),
        keys=keys,
    )
    for name, setup in setups.items():
        assert setup.transport.keys is keys[name]
        assert keys[name].own.secret not in repr(setup)


@pytest.mark.parametrize(
    ("limit", "samples_of_the_end", "seconds_of_the_end"),
    [
        (NO_LIMIT, 240, None),
        (RunLimit(samples=100), 100, None),
        (RunLimit(samples=10**6), 240, None),
        (RunLimit(seconds=3.0), 240, 3.0),
    ],
)
def test_a_run_ends_at_its_limit_or_at_the_jobs_end_whichever_is_earlier(
    limit: RunLimit, samples_of_the_end: int, seconds_of_the_end: float | None
) -> None:
    job = tiny_job()
    setups, plan = setups_of(job, parts=(2, 1))
    run = run_control(plan, job, setups, 10, 240, None, limit)
    for name, last in (("c0", "c0.s1"), ("c1", "c1.s0")):
        for update in range(samples_of_the_end // (2 * job.micro_batch * job.update_every) + 1):
            assert run.phase is RunPhase.TRAINING or run.samples >= samples_of_the_end, name
            run.handle(last, m.Updated(update=update, staleness=(0,), losses=(1.0,), lr=0.1))
    assert run.phase is RunPhase.DRAINING
    timed = run_control(plan, job, setups, 10, 240, None, limit)
    timed.tick(2.9)
    assert timed.phase is RunPhase.TRAINING
    timed.tick(3.1)
    assert (timed.phase is RunPhase.DRAINING) == (seconds_of_the_end is not None)


@pytest.mark.parametrize("speed", [0.5, 1.0, 4.0])
def test_the_minutes_of_a_job_are_those_of_its_own_machines_however_fast_these_are_imitated(speed: float) -> None:
    job = tiny_job(stop={"minutes": 1.0})
    setups, plan = setups_of(job, parts=(2, 1))
    timed = run_control(plan, job, setups, 10, None, None, speed=speed)
    timed.tick(60.0 / speed - 0.1)
    assert timed.phase is RunPhase.TRAINING
    timed.tick(60.0 / speed + 0.1)
    assert timed.phase is RunPhase.DRAINING
    earlier = run_control(plan, job, setups, 10, None, None, RunLimit(seconds=5.0), speed=speed)
    earlier.tick(5.1)  # by this machine's clock
    assert earlier.phase is RunPhase.DRAINING
