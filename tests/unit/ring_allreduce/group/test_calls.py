"""One call's times, and what must be the same at all members."""

import pytest
import torch

from ring_allreduce.group.calls import OVERTIME, VERDICT_SIGNS, Call, ring_spec
from ring_allreduce.group.flattening import flatten
from ring_timing.layout import MOST_CHUNK_BYTES_UNKNOWN


@pytest.mark.parametrize(
    ("limit_s", "patient", "most_s"),
    [(10.0, True, 10.0 * OVERTIME), (10.0, False, 10.0 + VERDICT_SIGNS), (2.0, True, 2.0 + VERDICT_SIGNS)],
)
def test_a_call_says_that_others_are_late_and_waits_for_the_verdict(limit_s, patient, most_s):
    call = Call([], torch.zeros(3), 1.0, limit_s)
    call.begin(100.0, patient=patient, alive_every_s=1.0)
    assert (call.overdue_at_s, call.deadline_s, call.most_s) == (100.0 + limit_s, 100.0 + most_s, most_s)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_ring_of_a_group_follows_from_what_all_members_know(dtype):
    small, large = (ring_spec("r", ("a", "b", "c", "d"), n, dtype, "exact") for n in (100, 10**8))
    assert (small.direct, large.direct) == (True, False)
    assert small.chunk_elements * dtype.itemsize <= MOST_CHUNK_BYTES_UNKNOWN
    assert ring_spec("r", ("a", "b"), 10**8, dtype, "exact").direct, "of two each sends to the other"


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
