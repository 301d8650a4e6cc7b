"""Training with ravnest's optimizers along a schedule: without a correction it is the replay; with one it bears "
"more."""

import pytest

from experiments.convergence import fleets
from experiments.convergence.cases import Case
from experiments.convergence.corrections import WAYS, train_corrected
from experiments.convergence.objectives import Quadratic

PLAIN, ADAPTIVE, MOMENTUM, AHEAD = WAYS


def pipeline(staleness: int, updates: int) -> Case:
    return Case(Quadratic(sigma_sq=0.0), fleets.schedule(fleets.Shape(stages=2, staleness=staleness), updates))


@pytest.mark.parametrize("staleness", [0, 5])
def test_plain_sgd_is_what_the_replay_computes(staleness):
    case = pipeline(staleness, 128)
    found = train_corrected(case, PLAIN, 128, 0.05, seeds=2)
    assert found == pytest.approx(case.train([128], [0.05], seeds=2)[0].virtual, rel=1e-9)


def test_corrections_bear_a_staleness_that_breaks_training_without():
    case = pipeline(40, 400)
    errors = {way.name: train_corrected(case, way, 400, 0.15, seeds=1)[0] for way in WAYS}
    assert errors[PLAIN.name] > 1e3 * errors[ADAPTIVE.name]
    assert errors[MOMENTUM.name] > 1e3 * errors[AHEAD.name]


def test_several_clusters_are_refused():
    case = Case(Quadratic(), fleets.schedule(fleets.equal(2, stages=2), 32))
    with pytest.raises(ValueError, match="one cluster"):
        train_corrected(case, PLAIN, 8, 0.1, seeds=1)
