"""A model of bfloat16 parameters is trained, averaged and saved in float32, and each stage computes with it rounded."""

import pytest
import torch
from torch.nn import functional

from ravnest.training.precision import WireConfig
from tests.support.jobs import narrow
from tests.support.local import Start, captured_job, local_run, tiny_job

LEARNING_RATE = 1e-4
"""So small that most steps are less than half of what bfloat16 tells apart."""
JOB = tiny_job(
    model={"factory": "narrow:Narrow"},
    data={"factory": "narrow:data"},
    optimizer={"name": "sgd", "lr": LEARNING_RATE},
    average_every=48,
    evaluate_every=96,
    stop={"samples": 192},
)


@pytest.mark.parametrize("cuts", [[[1, 2], [2]], [[]]])
def test_masters_are_saved_and_their_rounded_values_give_the_reported_loss(cuts: list[list[int]]) -> None:
    result = local_run(JOB, cuts).run()
    saved = result.checkpoints[-1]
    assert {tensor.dtype for tensor in saved.values()} == {torch.float32}
    assert any(not torch.equal(tensor, tensor.bfloat16().float()) for tensor in saved.values())
    model = narrow.Narrow()
    model.load_state_dict({**saved, "head.weight": saved["table.weight"]})
    ids, targets = narrow.data().held_out.tensors
    with torch.no_grad():  # the loss of each sample, since means of bfloat16 depend on the batches
        wanted = float(functional.cross_entropy(model.eval()(ids), targets, reduction="none").double().sum())
    total, count = result.evaluations[-1].loss
    assert count == len(ids)
    assert abs(wanted - total) < 1e-6 * count


def test_the_plan_counts_a_master_and_its_copies_in_float32() -> None:
    units = captured_job(JOB).units
    numbers = sum(parameter.numel() for parameter in narrow.Narrow().parameters())
    assert sum(unit.parameter_bytes for unit in units) == 4 * numbers
    assert sum(unit.narrow_bytes for unit in units) == 2 * numbers
    assert all(unit.boundary_narrow_bytes == unit.boundary_gradient_bytes > 0 for unit in units[:-1])


@pytest.mark.parametrize("wire", ["bfloat16", "int4"])
def test_what_crosses_a_cut_has_16_bits_or_fewer(wire: str) -> None:
    job = JOB.model_copy(update={"wire": WireConfig(activations=wire, gradients=wire)})  # type: ignore[arg-type]
    exact, short = (local_run(each, [[2]]).run().checkpoints[-1] for each in (JOB, job))
    assert all(torch.allclose(short[name], exact[name], atol=10 * LEARNING_RATE) for name in exact)
    assert all(torch.equal(short[name], exact[name]) for name in exact) == (wire == "bfloat16")


def test_a_run_with_other_cuts_goes_on_from_the_masters() -> None:
    saved = {name: tensor + 1e-5 for name, tensor in narrow.Narrow().float().state_dict().items()}
    start = Start(saved, {"c0.s0": {}, "c0.s1": {}}, {"c0": 0}, 0)
    for stage in local_run(JOB, [[2]], start=start).stages.values():
        weights = stage.compute.weights
        assert weights.names
        assert torch.equal(weights.flat(), torch.cat([saved[name].flatten() for name in weights.names]))
