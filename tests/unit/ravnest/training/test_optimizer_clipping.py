import math

import pytest
import torch

from ravnest.errors import RunFailed
from ravnest.training.optimizer import clip_scale, norm_to_clip_by


@pytest.mark.parametrize("clip_norm", [0.1, 1.0, 1e6])
def test_the_scale_is_torchs(clip_norm):
    parameter = torch.nn.Parameter(torch.zeros(50))
    gradient = torch.randn(50, generator=torch.Generator().manual_seed(1))
    parameter.grad = gradient.clone()
    norm = torch.nn.utils.clip_grad_norm_([parameter], clip_norm)
    assert torch.allclose(parameter.grad, gradient * clip_scale(float(norm), clip_norm), rtol=1e-6)


def test_the_scale_of_nothing():
    assert clip_scale(0.0, 1.0) == 1.0


@pytest.mark.parametrize(("last", "norm"), [(None, 3.0), (5.0, 5.0), (2.0, 3.0)])
def test_the_own_part_is_the_fallback_and_the_floor(last, norm):
    assert norm_to_clip_by(9.0, last) == norm


@pytest.mark.parametrize("norm", [math.inf, math.nan])
def test_a_norm_that_is_not_finite_ends_the_run(norm):
    with pytest.raises(RunFailed, match="training has diverged"):
        clip_scale(norm, 1.0)
