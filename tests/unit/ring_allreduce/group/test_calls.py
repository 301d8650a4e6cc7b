"""One call's times, and what must be the same at all members."""

import pytest
import torch

from ring_allreduce.group.calls import OVERTIME, VERDICT_SIGNS, Call, flatten


@pytest.mark.parametrize(
    ("limit_s", "patient", "most_s"),
    [(10.0, True, 10.0 * OVERTIME), (10.0, False, 10.0 + VERDICT_SIGNS), (2.0, True, 2.0 + VERDICT_SIGNS)],
)
def test_a_call_says_that_others_are_late_and_waits_for_the_verdict(limit_s, patient, most_s):
    call = Call([], torch.zeros(3), 1.0, limit_s)
    call.begin(100.0, patient=patient, alive_every_s=1.0)
    assert (call.overdue_at_s, call.deadline_s, call.most_s) == (100.0 + limit_s, 100.0 + most_s, most_s)


def test_a_form_is_the_shape_and_dtype_of_every_tensor_in_order():
    lists = [
        [torch.zeros(2, 3)],
        [torch.zeros(3, 2)],
        [torch.zeros(6).bfloat16()],
        [torch.zeros(2), torch.zeros(4)],
        [torch.zeros(4), torch.zeros(2)],
        [torch.zeros(1), torch.zeros(1), torch.zeros(4)],
        [torch.zeros(1), torch.zeros(1), torch.zeros(2, 2)],
        [torch.zeros(7)],
    ]
    forms = {Call(tensors, flatten(tensors), 1.0, 1.0).form for tensors in lists}
    assert len(forms) == len(lists)
    many = [torch.zeros(1)] * 1000
    assert len(Call(many, flatten(many), 1.0, 1.0).form) < 200
