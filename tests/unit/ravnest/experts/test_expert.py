import pytest
import torch

from ravnest.errors import InvalidInput
from ravnest.experts.claims import Kept
from ravnest.experts.config import build_expert
from ravnest.experts.expert import HostedExpert, NotFinite
from tests.support.experts import WIDTH, small_grid


def hosted(**keys: object) -> HostedExpert:
    config = small_grid(**keys)
    return HostedExpert(build_expert(config, (0, 0), ()), config)


def test_a_backward_is_that_of_torch_and_one_update() -> None:
    expert, plain = hosted(), build_expert(small_grid(), (0, 0), ())
    samples, gradient = torch.randn(5, WIDTH), torch.randn(5, WIDTH)
    assert torch.equal(expert.forward(samples, training=True), plain(samples))
    inputs = samples.clone().requires_grad_()
    plain(inputs).backward(gradient)
    assert torch.equal(expert.backward(samples, gradient, 1), inputs.grad)
    torch.optim.SGD(plain.parameters(), 0.1).step()
    assert expert.updates == 1
    for own, one in zip(expert.module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(own, one)


def test_an_update_is_by_the_mean_over_requests() -> None:
    samples, gradient = torch.randn(4, WIDTH), torch.randn(4, WIDTH)
    once, twice = hosted(), hosted()
    once.backward(samples, gradient, 1)
    doubled = twice.backward(samples.repeat(2, 1), gradient.repeat(2, 1), 2)
    assert doubled.shape == (8, WIDTH)
    for own, one in zip(once.module.parameters(), twice.module.parameters(), strict=True):
        torch.testing.assert_close(own, one)


def test_a_gradient_that_is_not_finite_changes_nothing() -> None:
    expert = hosted()
    before = expert.state()
    with pytest.raises(NotFinite):
        expert.backward(torch.randn(2, WIDTH), torch.full((2, WIDTH), 1e38), 1)
    assert all(torch.equal(one, expert.state()[name]) for name, one in before.items())
    assert expert.updates == 0


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_gradient_whose_square_would_overflow_is_refused_and_one_below_leaves_the_expert_able_to_learn(
    optimizer: str,
) -> None:
    expert = hosted(optimizer={"name": optimizer, "lr": 0.1})
    with pytest.raises(NotFinite, match="norm"):
        expert.backward(torch.zeros(2, WIDTH), torch.full((2, WIDTH), 1e25), 1)
    expert.backward(torch.zeros(2, WIDTH), torch.full((2, WIDTH), 1e13), 1)
    assert all(bool(one.isfinite().all()) for one in expert.state().values())


def test_clipping_bounds_an_update() -> None:
    expert = hosted(optimizer={"name": "sgd", "lr": 1.0, "clip_norm": 0.5})
    before = expert.state()
    expert.backward(torch.randn(2, WIDTH), 100 * torch.randn(2, WIDTH), 1)
    moved = sum(float((one - before[name]).pow(2).sum()) for name, one in expert.state().items()) ** 0.5
    assert moved == pytest.approx(0.5, rel=1e-3)


def test_who_goes_on_from_a_state_makes_the_same_updates() -> None:
    first, second = hosted(optimizer={"name": "adamw", "lr": 0.1}), hosted(optimizer={"name": "adamw", "lr": 0.1})
    samples, gradient = torch.randn(3, WIDTH), torch.randn(3, WIDTH)
    first.backward(samples, gradient, 1)
    state = first.state()
    second.restore(state, Kept(4, first.updates))
    assert (second.updates, second.term, second.kept) == (1, 4, Kept(4, 1))
    for one in (first, second):
        one.backward(samples, gradient, 1)
    assert all(torch.equal(one, second.state()[name]) for name, one in first.state().items())
    assert not torch.equal(state["weights.linear.weight"], first.state()["weights.linear.weight"])


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.pop("weights.linear.bias"),
        lambda state: state.update({"weights.more": torch.zeros(1)}),
        lambda state: state.update({"weights.linear.bias": torch.zeros(WIDTH + 1)}),
        lambda state: state.update({"weights.linear.bias": torch.full((WIDTH,), float("nan"))}),
        lambda state: state.update({"optimizer.9.exp_avg": torch.zeros(WIDTH)}),
        lambda state: state.update({"optimizer.x": torch.zeros(WIDTH)}),
        lambda state: state.update({"optimizer.0.exp_avg": torch.zeros(2)}),
        lambda state: state.pop("optimizer.0.exp_avg"),  # without it the next update would raise KeyError
        lambda state: state.update({"optimizer.1.more": torch.zeros(1)}),
        lambda state: [state.pop(name) for name in list(state) if name.startswith("optimizer.1.")],
        lambda state: state.update({"optimizer.0.step": torch.tensor(float("nan"))}),  # and so are the next weights
        lambda state: state.update({"optimizer.0.step": torch.tensor(-1.0)}),
        lambda state: state.update({"optimizer.0.step": torch.tensor(True)}),
        lambda state: state["optimizer.1.exp_avg_sq"].neg_(),
    ],
)
def test_a_state_of_another_kind_of_expert_is_refused_and_changes_nothing(change) -> None:
    expert = hosted(optimizer={"name": "adamw", "lr": 0.1})
    expert.backward(torch.randn(3, WIDTH), torch.randn(3, WIDTH), 1)
    before, state = expert.state(), expert.state()
    change(state)
    with pytest.raises(InvalidInput):
        expert.restore(state, Kept(1, 50))
    assert expert.updates == 1
    assert all(torch.equal(one, expert.state()[name]) for name, one in before.items())
