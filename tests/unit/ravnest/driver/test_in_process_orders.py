"""Runs whose stages take their turns in random order and at random speeds: what must hold under any order of events.

Design §11, invariants 3 and 4, and that a run always ends.
"""

import random

import pytest

from ravnest.driver import instructions as ins
from tests.support.local import captured_job, local_run, tiny_job


def shuffled(seed):
    """Who takes a turn, and when: each stage keeps a speed of its own, so that clusters drift apart."""
    draw, speeds = random.Random(seed), {}

    def order(stages):
        for name in stages:
            speeds.setdefault(name, draw.choice([0.15, 0.5, 1.0]))
        some = [name for name in stages if draw.random() < speeds[name]]
        draw.shuffle(some)
        return some

    return order


def random_cuts(seed, units, clusters):
    draw = random.Random(f"cuts {seed}")
    return [sorted(draw.sample(range(1, units), draw.choice([0, 1, 2]))) for _ in range(clusters)]


@pytest.mark.parametrize("max_staleness", [0, 1, 2])
@pytest.mark.parametrize("max_lag", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_it_ends_in_agreement_and_within_its_bounds(seed, max_lag, max_staleness):
    job = tiny_job(
        model={"factory": "tiny:gpt", "args": {"layers": 2, "width": 4}},
        micro_batch=2,
        update_every=2,
        max_staleness=max_staleness,
        max_lag=max_lag,
        average_every=12,
        evaluate_every=30,
        stop={"samples": 72},
        optimizer={"name": "sgd", "lr": 0.05, "clip_norm": 1.0} if seed == 1 else {"name": "adamw", "lr": 0.01},
    )
    cuts = random_cuts(seed, len(captured_job(job).units), clusters=2 + seed % 2)
    run = local_run(job, cuts, order=shuffled(f"{seed} {max_lag} {max_staleness}"))
    lags = []

    def watch():
        lags.append(max(stage.machine.contributed - stage.machine.merged for stage in run.stages.values()))
        return False

    result = run.run(until=watch)
    assert run.control.phase is ins.RunPhase.DONE
    assert run.control.samples >= 72
    assert run.control.rounds_committed >= 3
    assert max(lags) <= max_lag
    assert all(staleness <= max_staleness for found in result.staleness.values() for staleness in found)
    anchors, lives = {}, {}
    for stage in run.stages.values():
        for segment in stage.setup.segments:
            anchor = stage.rounds.anchor(segment.ring).numpy().tobytes()
            anchors.setdefault(segment.ring, set()).add(anchor)
            live = stage.compute.weights.flat(segment.parameters)
            lives.setdefault(segment.ring, set()).add(live.numpy().tobytes())
    assert all(len(held) == 1 for held in anchors.values())
    assert lives == anchors
    assert len(result.evaluations) >= 2
