import pytest
import torch

from ravnest.training.lamb import LAMB
from ravnest.training.optimizer import OptimizerConfig, build_optimizer


def test_a_first_step_is_as_long_as_the_rate_says_of_the_weights() -> None:
    weights = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    weights.grad = torch.tensor([0.5, -0.1])
    LAMB([weights], lr=0.1, weight_decay=0.0).step()
    step = torch.tensor([3.0, 4.0]) - weights.detach()
    assert float(step.norm()) == pytest.approx(0.1 * 5.0, rel=1e-5)
    assert step.sign().tolist() == [1.0, -1.0]


def test_it_follows_its_equations_over_several_steps() -> None:
    draw = torch.Generator().manual_seed(1)
    start = torch.randn(4, 3, generator=draw, dtype=torch.float64)
    gradients = [torch.randn(4, 3, generator=draw, dtype=torch.float64) for _ in range(5)]
    weights = torch.nn.Parameter(start.clone())
    optimizer = LAMB([weights], lr=0.02, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.1)
    w, m, v = start.clone(), torch.zeros_like(start), torch.zeros_like(start)
    for number, gradient in enumerate(gradients, 1):
        weights.grad = gradient.clone()
        optimizer.step()
        m = 0.8 * m + 0.2 * gradient
        v = 0.9 * v + 0.1 * gradient**2
        r = (m / (1 - 0.8**number)) / ((v / (1 - 0.9**number)).sqrt() + 1e-6) + 0.1 * w
        w = w - 0.02 * w.norm() / r.norm() * r
        torch.testing.assert_close(weights.detach(), w)


def test_weights_of_zero_move_as_by_adam() -> None:
    weights = torch.nn.Parameter(torch.zeros(2))
    weights.grad = torch.tensor([1.0, -1.0])
    LAMB([weights], lr=0.1).step()
    torch.testing.assert_close(weights.detach(), torch.tensor([-0.1, 0.1]), rtol=1e-4, atol=1e-6)


def test_a_job_can_name_it_and_is_told_of_wrong_numbers() -> None:
    config = OptimizerConfig.model_validate({"name": "lamb", "lr": 0.01, "max_norm": 5.0})
    assert isinstance(build_optimizer(config, [("w", torch.nn.Parameter(torch.ones(2)))]), LAMB)
    with pytest.raises(ValueError, match="max_norm"):
        OptimizerConfig.model_validate({"name": "lamb", "max_norm": 0.0})
