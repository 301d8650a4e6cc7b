"""A run of a model with what few models have ends with weights that the model itself loads, and gives their loss."""

import torch
from torch.nn import functional

from tests.support.jobs import odd
from tests.support.local import local_run, setups_of, tiny_job

JOB = tiny_job(
    model={"factory": "odd:Odd"},
    data={"factory": "odd:data"},
    optimizer={"name": "sgd", "lr": 0.1},
    average_every=48,
    evaluate_every=96,
    stop={"samples": 192},
)
CUTS = [[1, 2], [2]]


def test_complex_values_a_frozen_stage_a_counter_and_float64_train_and_are_saved_as_they_are() -> None:
    setups, _ = setups_of(JOB, CUTS)
    trains = {name: any(spec.requires_grad for spec in setup.program.parameters) for name, setup in setups.items()}
    assert trains == {"c0.s0": True, "c0.s1": False, "c0.s2": True, "c1.s0": True, "c1.s1": True}
    result = local_run(JOB, CUTS).run()
    assert sum(map(len, result.losses.values())) >= 48
    saved = result.checkpoints[-1]
    model = odd.Odd()
    wanted = model.state_dict()
    assert {name: tensor.dtype for name, tensor in saved.items()} == {
        name: tensor.dtype for name, tensor in wanted.items()
    }
    assert torch.equal(saved["scale"], wanted["scale"])
    assert torch.equal(saved["_extra_state"], wanted["_extra_state"])
    assert int(saved["calls"]) > 0
    model.load_state_dict(saved)
    held_out = odd.data().held_out
    with torch.no_grad():
        loss = functional.cross_entropy(model.eval()(held_out.tensors[0]), held_out.tensors[1])
    total, count = result.evaluations[-1].loss
    assert abs(float(loss) - total / count) < 1e-6
