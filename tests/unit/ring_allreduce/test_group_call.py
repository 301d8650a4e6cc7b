"""One call's times, and what must be the same at all members."""

import math

import torch

from ring_allreduce.flattening import flatten
from ring_allreduce.group_call import OVERTIME, Call


def test_a_patient_call_says_that_others_are_late_and_goes_on():
    call = Call([], torch.zeros(3), 1.0, 10.0)
    call.begin(100.0, patient=True)
    assert (call.overdue_at_s, call.deadline_s, call.most_s) == (110.0, 100.0 + 10.0 * OVERTIME, 10.0 * OVERTIME)


def test_one_that_is_not_ends_at_its_time():
    call = Call([], torch.zeros(3), 1.0, 10.0)
    call.begin(100.0, patient=False)
    assert (call.overdue_at_s, call.deadline_s, call.most_s) == (math.inf, 110.0, 10.0)


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
