import torch

from ravnest.experts.gate import ProductKeyGate, balance_loss


def test_scores_are_sums_of_logarithms_of_shares() -> None:
    gate = ProductKeyGate(6, (3, 2))
    numbers = gate(torch.randn(4, 6))
    assert [tuple(one.shape) for one in numbers] == [(4, 3), (4, 2)]
    for one in numbers:
        torch.testing.assert_close(one.exp().sum(-1), torch.ones(4))
    none = (-1, -1)
    scores = gate.scores(numbers, torch.tensor([[(0, 1), (2, 0)], [(1, 1), none], [(2, 1), (0, 0)], [(0, 0), none]]))
    assert scores.shape == (4, 2)
    torch.testing.assert_close(scores[0, 1], numbers[0][0, 2] + numbers[1][0, 0])
    assert scores[1, 1] == float("-inf")
    weights = scores.softmax(-1)
    assert weights[1].tolist() == [1.0, 0.0]
    weights.sum().backward()
    assert bool(gate.linear.weight.grad.isfinite().all())


def test_the_balance_loss_is_zero_for_even_shares_and_grows_with_their_spread() -> None:
    even = [torch.full((5, 4), 0.25).log()]
    turns = [torch.eye(4).clamp_min(1e-9).log()]  # each sample chooses another
    one = [torch.eye(4)[:1].repeat(5, 1).clamp_min(1e-9).log()]
    assert float(balance_loss(even).abs()) < 1e-6
    assert float(balance_loss(turns).abs()) < 1e-6
    assert abs(float(balance_loss(one)) - 3.0) < 1e-6
    assert abs(float(balance_loss([*one, *one])) - 6.0) < 1e-6
