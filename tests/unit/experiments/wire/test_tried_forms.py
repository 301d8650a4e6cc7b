import pytest
import torch

from experiments.wire.tried_forms import EXACT, fed_back, largest, low_rank, normal_levels, whole_numbers
from ravnest.training.precision import ring_wire
from ring_allreduce.ring import bytes_per_element, decode, encode


def numbers(count=1000):
    return torch.randn(count, generator=torch.Generator().manual_seed(0))


def test_int4_is_that_of_the_rings():
    vector = numbers()
    arrived = decode("int4", encode("int4", vector, 1.0, None), len(vector), 1.0, torch.float32)
    form = whole_numbers(7, 64)
    assert torch.allclose(form.passes(vector), arrived, atol=1e-6)
    assert form.bits == 8 * bytes_per_element(ring_wire("int4"))


def test_the_largest_are_those_of_sparse():
    vector = numbers(1024)
    arrived = decode("sparse", encode("sparse", vector, 1.0, None), len(vector), 1.0, torch.float32)
    form = largest(12, 256)
    assert torch.allclose(form.passes(vector), arrived, atol=1e-6)
    assert form.bits == 8 * bytes_per_element("sparse")


@pytest.mark.parametrize(("bits", "lost"), [(1, 0.363), (2, 0.1175), (3, 0.0345)])
def test_levels_lose_of_normal_numbers_what_theory_says(bits, lost):
    vector, form = numbers(100_000), normal_levels(bits, 64)
    assert (form.passes(vector) - vector).square().mean().item() == pytest.approx(lost, rel=0.06)
    assert form.bits == bits + 0.25


def test_a_number_that_is_rounded_by_chance_is_right_on_the_mean():
    form = whole_numbers(1, 4, torch.Generator().manual_seed(0))
    vector = torch.tensor([1.0, 0.25, -0.5, 0.0])
    mean = torch.stack([form.passes(vector) for _ in range(4000)]).mean(0)
    assert torch.allclose(mean, vector, atol=0.04)
    assert {*form.passes(vector).tolist()} <= {-1.0, 0.0, 1.0}


def test_a_matrix_of_low_rank_arrives_and_one_of_full_rank_does_not():
    left, right = numbers(64).view(16, 4), numbers(128).view(4, 32)
    form = low_rank(4, 16, 32)
    form.passes(left @ right)
    matrix = left @ right
    assert torch.allclose(form.passes(matrix), matrix, atol=0.1)
    full = numbers(512).view(16, 32)
    assert (form.passes(full) - full).norm() > 0.5 * full.norm()
    assert form.bits == pytest.approx(8.125 * 4 * 48 / 512)


def test_what_is_fed_back_arrives_later():
    form, vector = fed_back(largest(1, 4)), torch.tensor([4.0, 3.0, 0.0, 0.0])
    sent = sum(form.passes(vector) for _ in range(40))
    assert torch.allclose(sent / 40, vector, atol=0.2)
    assert largest(1, 4).passes(vector)[1] == 0


def test_exactly_changes_nothing():
    assert torch.equal(EXACT.passes(numbers()), numbers())
