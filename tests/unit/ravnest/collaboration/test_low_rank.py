import math

import numpy as np
import pytest
import torch

from ravnest.collaboration.low_rank import LowRank
from ravnest.errors import InvalidInput

SHAPES = [(40, 30), (30,), (8, 4, 3, 3), (), (2, 2)]


def test_a_matrix_of_that_rank_or_less_is_sent_whole_and_small_parameters_always_are() -> None:
    draw = torch.Generator().manual_seed(0)
    matrix = torch.randn(40, 2, generator=draw) @ torch.randn(2, 30, generator=draw)
    rest = torch.randn(30 + 288 + 1 + 4, generator=draw)
    low_rank = LowRank(SHAPES, 4)
    assert low_rank.elements == 1200 + 323
    assert low_rank.packed_elements == 4 * 70 + 30 + 4 * 44 + 1 + 4
    vector = torch.cat([matrix.reshape(-1), rest])
    packed = low_rank.packed(vector, low_rank.first_bases())
    found = low_rank.unpacked(packed, math.inf)
    torch.testing.assert_close(found[:1200], vector[:1200], rtol=0, atol=1e-4)
    assert torch.equal(found[1200:1230], vector[1200:1230])
    assert torch.equal(found[-5:], vector[-5:])


def test_again_and_again_it_comes_near_the_best_matrix_of_that_rank() -> None:
    draw = torch.Generator().manual_seed(0)
    matrix = torch.randn(40, 30, generator=draw)
    left, values, right = torch.linalg.svd(matrix)
    best = left[:, :4] @ torch.diag(values[:4]) @ right[:4]
    low_rank = LowRank([(40, 30)], 4)
    bases, errors = low_rank.first_bases(), []
    for _ in range(200):
        found = low_rank.unpacked(low_rank.packed(matrix.reshape(-1), bases), math.inf)
        errors.append(float((found.view(40, 30) - matrix).norm()))
    assert errors[-1] < errors[0]
    assert errors[-1] == pytest.approx(float((best - matrix).norm()), rel=1e-3)


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e15])
def test_after_zeros_and_tiny_or_large_gradients_another_one_is_sent_as_well(scale: float) -> None:
    low_rank = LowRank([(20, 20)], 2)
    bases = low_rank.first_bases()
    torch.manual_seed(0)
    low_rank.packed(scale * torch.randn(400), bases)
    ones = torch.ones(400)
    for _ in range(3):
        found = low_rank.unpacked(low_rank.packed(ones, bases), math.inf)
    torch.testing.assert_close(found, ones, rtol=0, atol=1e-4)


def test_finite_matrices_whose_product_is_not_are_refused() -> None:
    low_rank = LowRank([(20, 20)], 2)
    for value, most in ((1e25, 1e30), (1e30, math.inf)):
        with pytest.raises(InvalidInput, match="thin matrices"):
            low_rank.unpacked(torch.full((low_rank.packed_elements,), value), most if most < math.inf else 3e38)


def test_what_a_receiver_makes_of_it_is_the_same_bits_on_any_processor() -> None:
    """Each multiplication and addition rounded by itself, in order, as numpy does it here. A routine for matrices may
    use fused ones, in another order."""
    draw = torch.Generator().manual_seed(0)
    left, right = torch.randn(50, 7, generator=draw), torch.randn(30, 7, generator=draw)
    low_rank = LowRank([(50, 30)], 7)
    found = low_rank.unpacked(torch.cat([left.reshape(-1), right.reshape(-1)]), math.inf).view(50, 30)
    wanted = np.zeros((50, 30), dtype=np.float32)
    for column in range(7):
        term = left.numpy()[:, column : column + 1] * right.numpy()[:, column]
        wanted = term if column == 0 else wanted + term
    assert found.numpy().tobytes() == wanted.tobytes()
