"""The fleets have what they are asked for, as the machines allow it, and their schedules are legal."""

import numpy as np
import pytest

from experiments.convergence import fleets
from experiments.convergence.schedule import schedule_of


@pytest.mark.parametrize("staleness", [0, 1, 7, 32])
def test_the_first_stage_is_as_late_as_asked_and_the_last_is_not(staleness):
    ages = fleets.schedule(fleets.Shape(stages=2, staleness=staleness), 200).staleness
    assert (ages[100:, 0, 0] == staleness).all()
    assert ages.max() == staleness
    assert (ages[:, 0, -1] == 0).all()


def test_unequal_clusters_contribute_by_their_speed():
    schedule = fleets.schedule(fleets.Shape(speeds=(1.0, 2.0), stages=2, staleness=1, round=4), 400)
    made = np.diff(schedule.ends, axis=1)[:, 5:-3].mean(axis=1)
    assert made[1] / made[0] == pytest.approx(2, rel=0.1)
    assert schedule.weight.min() == pytest.approx(1 / 3, rel=0.3)


@pytest.mark.parametrize("lag", [1, 2, 4])
def test_slow_averagings_use_the_lag_up_and_never_pass_it(lag):
    schedule = fleets.schedule(fleets.equal(3, stages=2, round=4, lag=lag, ring_rounds=lag + 0.5), 600)
    number = np.arange(schedule.ends.shape[1])[None, :, None]
    pending = (number - 1 - schedule.snapped)[:, 1:]
    assert pending.max() == lag - 1, "before a snapshot, at most so many may be pending"


def test_several_clusters_need_rings():
    fleet = fleets.fleet_of(fleets.equal(2))
    without = type(fleet)(clusters=fleet.clusters, update_every=1, max_staleness=0)
    with pytest.raises(ValueError, match="rings"):
        schedule_of([], without)
