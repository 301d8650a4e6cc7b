from dataclasses import replace

import pytest

from ravnest.errors import InvalidInput
from ravnest.planning.workload import check_workload, with_optimizer, workload
from ravnest.training.optimizer_memory import state_bytes
from tests.support.local import captured_job, setups_of, tiny_job


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"update_every": 8}, "workload.update_every: is 3, but job.update_every is 8: plan again"),
        ({"micro_batch": 2}, "workload.micro_batch: is 4, but job.micro_batch is 2"),
        ({"max_lag": 3}, "workload.max_lag: is 1, but job.max_lag is 3"),
        (
            {"optimizer": {"name": "sgd", "lr": 0.1}},
            "workload.optimizer_state_bytes_per_parameter_byte: is 2.0, but what",
        ),
        (
            {"averaging": {"wire": "bfloat16"}},
            "workload.averaged_bytes_per_parameter_byte: is 1.0, but what job.averaging.wire takes is 0.5: plan again",
        ),
        (
            {"wire": {"activations": "int8"}},
            "workload.activation_wire_ratio: is 1.0, but what job.wire.activations takes",
        ),
        (
            {"wire": {"gradients": "float16"}},
            "workload.gradient_wire_ratio: is 1.0, but what job.wire.gradients takes is",
        ),
        (
            {"averaging": {"outer": {"nesterov": {}}}},
            "workload.averaging_state_bytes_per_parameter_byte: is 0.0, but what job.averaging keeps is 1.0",
        ),
        (
            {"averaging": {"robust": "trimmed_mean"}},
            "workload.robust_averaging: is False, but what job.averaging.robust needs is True: plan again",
        ),
    ],
)
def test_a_plan_whose_job_was_edited_is_refused(change, said):
    _, plan = setups_of(tiny_job())
    check_workload(plan, tiny_job(), "plan.yaml")
    with pytest.raises(InvalidInput) as caught:
        check_workload(plan, tiny_job(**change), "plan.yaml")
    assert str(caught.value).startswith(f"plan.yaml: {said}")


def test_what_a_process_needs_is_no_matter_of_the_job():
    _, plan = setups_of(tiny_job())
    check_workload(replace(plan, workload=replace(workload(tiny_job()), process_bytes=1)), tiny_job(), "plan.yaml")


@pytest.mark.parametrize(
    ("change", "splits"),
    [
        ({}, True),
        ({"split_backward": "never"}, False),
        ({"max_staleness": 0}, True),
        ({"schedule": "1f1b"}, False),  # a baseline, unless
        ({"schedule": "gpipe", "split_backward": "always"}, True),
        ({"precision": "float16", "split_backward": "always"}, False),
    ],
)
def test_backwards_may_be_split_unless_something_speaks_against_it(change, splits):
    assert workload(tiny_job(**change)).splits_backward == splits


def test_mixed_precision_keeps_what_weights_are_cast_to():
    found = {precision: workload(tiny_job(precision=precision)) for precision in ("float32", "bfloat16", "float16")}
    assert [work.cast_bytes_per_parameter_byte for work in found.values()] == [0.0, 0.5, 0.5]


def test_each_unit_is_told_what_its_optimizer_keeps():
    job = tiny_job(optimizer={"name": "adafactor", "lr": 1e-2})
    captured = captured_job(job)
    found = with_optimizer(captured, job)
    for number, unit in enumerate(found.units):
        specs = captured.span(number, number + 1).parameters
        assert unit == replace(captured.units[number], optimizer_bytes=state_bytes(job.optimizer, specs))
    assert 0 < sum(unit.optimizer_bytes for unit in found.units) < captured.costs.parameter_bytes
    assert found.fingerprint == captured.costs.fingerprint


def test_a_plan_whose_job_leaves_the_staleness_open_is_refused():
    _, plan = setups_of(tiny_job())
    plan = replace(plan, workload=workload(tiny_job()))
    with pytest.raises(InvalidInput, match=r"^plan\.yaml: job\.max_staleness: is auto, but a plan has a number"):
        check_workload(plan, tiny_job(max_staleness="auto"), "plan.yaml")
