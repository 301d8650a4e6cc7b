"""How a stage computes is tested in test_staged_trainer.py, against one machine that holds the whole model."""

from pathlib import Path

import pytest
import torch

from ravnest.collaboration.lent_stage import LentStage
from ravnest.errors import InvalidInput
from ravnest.job.config import load_job
from ravnest.job.materials import capture_on
from tests.unit.ravnest.collaboration.jobs import job_in


@pytest.fixture
def stage(tmp_path: Path) -> LentStage:
    job_file = job_in(tmp_path)
    job = load_job(job_file)
    captured = capture_on(job, job_file, (torch.zeros(8, 6),))
    names = ["0.weight", "0.bias", "2.weight", "2.bias"]
    return LentStage(job, job_file, captured.span(0, 1), names, last=False, total_steps=10)


def test_it_holds_its_own_span_and_nothing_else(stage: LentStage) -> None:
    assert not stage.weight("0.weight").any()
    for asked in (stage.weight, stage.take_sum, stage.buffer):
        with pytest.raises(InvalidInput, match="hold no '2"):
            asked("2.weight")
    with pytest.raises(InvalidInput, match="hold no"):
        stage.set_mean("2.weight", torch.zeros(32))


def test_values_of_another_size_or_kind_are_refused(stage: LentStage) -> None:
    with pytest.raises(InvalidInput, match="of 96, not"):
        stage.set_weight("0.weight", torch.zeros(95))
    with pytest.raises(InvalidInput, match="float64"):
        stage.set_weight("0.weight", torch.zeros(96, dtype=torch.float64))
    for mean in (torch.zeros(95), torch.zeros(96, dtype=torch.float64)):
        with pytest.raises(InvalidInput, match="of 96, not"):
            stage.set_mean("0.weight", mean)
    for key, size in (("exp_avg", 95), ("no_such_thing", 96)):
        with pytest.raises(InvalidInput, match="that the optimizer keeps"):
            stage.set_optimizer("0.weight", key, torch.zeros(size))


def test_a_step_needs_a_mean_of_each_parameter(stage: LentStage) -> None:
    stage.set_mean("0.weight", torch.zeros(96))
    with pytest.raises(InvalidInput, match="needs the mean of each"):
        stage.step()


def test_inputs_of_another_form_are_refused(stage: LentStage) -> None:
    with pytest.raises(InvalidInput, match="takes 1 tensors"):
        stage.forward(0, (), None)
    for wrong in (torch.zeros(8, 7), torch.zeros(8, 6, dtype=torch.int64), torch.zeros(6)):
        with pytest.raises(InvalidInput, match="a stage takes"):
            stage.forward(0, (wrong,), None)


def test_gradients_of_another_form_or_of_no_forward_are_refused(stage: LentStage) -> None:
    (output,) = stage.forward(0, (torch.ones(8, 6),), None)
    with pytest.raises(InvalidInput, match="no forward of micro-batch 1"):
        stage.backward(1, (torch.ones_like(output),))
    for turn, wrong in enumerate(((), (output, output), (output[:4],), (output.double(),))):
        stage.forward(turn, (torch.ones(8, 6),), None)
        with pytest.raises(InvalidInput, match="of other forms"):
            stage.backward(turn, wrong)


def test_a_target_is_for_the_last_stage(stage: LentStage) -> None:
    with pytest.raises(InvalidInput, match="the last stage takes a target"):
        stage.forward(0, (torch.ones(8, 6),), torch.zeros(8))


def test_gradients_are_counted_once_and_those_of_earlier_turns_are_forgotten(stage: LentStage) -> None:
    stage.set_weight("0.weight", torch.ones(96))
    for turn in range(3):
        (output,) = stage.forward(turn, (torch.ones(8, 6),), None)
        assert stage.backward(turn, (torch.ones_like(output),)).finite
    stage.count(1, 8)
    stage.count(0, 8)  # is forgotten
    once = stage.take_sum("0.bias")
    assert once.any()
    assert not stage.take_sum("0.bias").any()
    stage.count(2, 16)
    assert torch.equal(stage.take_sum("0.bias"), 2 * once)


def test_a_gradient_that_is_not_finite_is_told(stage: LentStage) -> None:
    (output,) = stage.forward(0, (torch.ones(8, 6),), None)
    assert not stage.backward(0, (torch.full_like(output, float("nan")),)).finite
