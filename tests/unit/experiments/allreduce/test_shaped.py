import pytest

from experiments.allreduce.shaped import EMULATED_CASES, FLOAT_BYTES, LAB_CASES


@pytest.mark.parametrize("case", [*LAB_CASES, *EMULATED_CASES])
def test_a_vector_is_no_smaller_than_it_is_said_to_be_and_divides_evenly(case):
    assert case.n_bytes >= max(4 * case.members * case.bytes_per_s * case.one_way_s, case.bytes_per_s)
    assert case.n_bytes % (FLOAT_BYTES * case.members) == 0
