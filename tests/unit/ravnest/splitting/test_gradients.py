"""A large gradient is compared without being kept, and a wrong one is noticed."""

import pytest
import torch
from torch import nn

from ravnest.splitting.gradients import PIECE, Noted, noted, noting_gradients


def values(numbers=5 * PIECE + 3, seed=0):
    return torch.randn(numbers, generator=torch.Generator().manual_seed(seed))


def test_one_wrong_number_shows_and_rounding_does_not():
    right = values()
    assert noted(right).difference(noted(right)) == 0.0
    for place in (0, PIECE, len(right) - 1):
        wrong = right.clone()
        wrong[place] += 0.01 * float(right.abs().max())
        assert noted(wrong).difference(noted(right)) > 1e-3
    rounded = right * (1 + 1e-6 * values(seed=1))
    assert noted(rounded).difference(noted(right)) < 1e-5


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_must_stand_in_the_same_pieces(value):
    right, same, other = values(), values(), values()
    right[1] = same[1] = other[2 * PIECE] = value
    assert noted(same).difference(noted(right)) == 0.0
    assert not noted(other).difference(noted(right)) < 1.0


def test_other_kinds_of_numbers_are_noted_too():
    for right in (values().bfloat16(), torch.complex(values(), values(seed=1)), torch.zeros(0), torch.zeros(2, PIECE)):
        assert noted(right).difference(noted(right.clone())) == 0.0


@pytest.mark.parametrize("large", [1, 10**6])
def test_gradients_of_parts_are_added_and_parameters_keep_none(large):
    shared = torch.randn(PIECE, 2)
    parts = [nn.Linear(2, PIECE, bias=False), nn.Linear(2, PIECE, bias=False)]
    for part in parts:
        part.weight.data = shared
    x = torch.randn(3, 2)
    with noting_gradients(parts, large) as found:
        for scale, part in enumerate(parts, 1):
            (scale * part(x)).sum().backward()
    assert all(part.weight.grad is None for part in parts)
    expected = 3 * x.sum(0).expand(PIECE, 2)
    if large == 1:
        assert isinstance(found["weight"], Noted)
        assert found["weight"].difference(noted(expected)) < 1e-6
    else:
        torch.testing.assert_close(found["weight"], expected)
    parts[0](x).sum().backward()
    assert parts[0].weight.grad is not None
    assert list(found) == ["weight"]
