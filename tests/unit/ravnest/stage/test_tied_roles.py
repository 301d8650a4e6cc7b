from itertools import pairwise

import torch

from ravnest.splitting import TensorSpec
from ravnest.stage.tied import TiedSetup, tied_setups
from tests.support.local import captured_job, tiny_job

EVERYWHERE = tiny_job(model={"factory": "tied:everywhere"})


def setups(*cuts):
    model = captured_job(EVERYWHERE)
    edges = [0, *cuts, len(model.units)]
    return model, tied_setups([model.span(a, b) for a, b in pairwise(edges)])


def test_owner_borrowers_and_those_between():
    model, _ = setups()
    (middle,) = model.tied["words.weight"][1:-1]
    _, (owner, between, second, last) = setups(1, middle - 1, middle + 1)
    words = ("words.weight",)
    assert (owner.borrowed, owner.lent, owner.passed_on) == ((), words, ())
    assert (between.borrowed, between.lent, between.passed_on) == ((), (), words)
    assert (second.borrowed, second.lent, second.passed_on) == (words, (), words)
    assert (last.borrowed, last.lent, last.passed_on) == (words, (), ())
    assert [s.from_behind for s in (owner, between, second, last)] == [words, words, words, ()]
    assert [s.to_owner for s in (owner, between, second, last)] == [(), words, words, words]
    spec = second.specs["words.weight"]
    assert (spec.dtype, spec.shape, spec.needs_gradient) == (torch.float32, (11, 16), False)


def test_frozen_parameters_and_lone_stages_need_nothing():
    model, (lone,) = setups()
    assert lone == TiedSetup()
    assert "places.weight" in model.tied
    assert isinstance(model.span(0, 1).parameters[0], TensorSpec)
    _, cut = setups(1)
    assert all("places.weight" not in (*s.lent, *s.borrowed, *s.passed_on) for s in cut)
