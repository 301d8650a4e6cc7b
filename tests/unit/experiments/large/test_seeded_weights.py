import pytest
import torch
from torch import nn

from experiments.large.seeded_weights import NAMES, Compared, digests, part_of
from ravnest.splitting import record


def test_digests_tell_seeds_apart_and_not_cuts():
    whole = record(lambda: nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), 1)
    found = digests([whole], 1)
    assert found.keys() == {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert found["0.weight"][1] == 12
    assert found == digests([whole.only(["0.weight", "0.bias"])], 1) | digests([whole.only(["1.weight", "1.bias"])], 1)
    other = digests([whole], 2)
    assert all(other[name] != found[name] for name in found)


class Zeros(nn.Module):
    def __init__(self, *shape, dtype=torch.float32):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(shape, dtype=dtype))


def test_digests_tell_types_and_shapes_apart():
    makers = (lambda: Zeros(4), lambda: Zeros(2, 2), lambda: Zeros(2, dtype=torch.float64))
    assert len({digests([record(make, 1)], 1)["weight"][0] for make in makers}) == 3


@pytest.mark.parametrize(("differing", "drawn", "held"), [([], 2, True), (["a"], 2, False), ([], 0, False)])
def test_a_family_whose_weights_differ_or_are_all_constants_is_not_equal(differing, drawn, held):
    part = part_of([Compared("x", [1, 2, 3], 3, 9, differing, drawn), Compared("y", [1, 2, 3], 3, 9, [], 1)])
    assert [claim.held for claim in part.claims] == [held]
    assert ("x: a" in part.notes) == bool(differing)


def test_there_are_six_families():
    assert len(set(NAMES)) == 6
