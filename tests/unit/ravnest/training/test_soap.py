import pytest
import torch
from torch import nn

from ravnest.training.soap import SOAP


def gradients(count, *shape):
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(count)]


def trained(start, given, kind=SOAP, **arguments):
    parameter = nn.Parameter(start.clone())
    optimizer = kind([parameter], lr=0.01, **arguments)
    for gradient in given:
        parameter.grad = gradient.clone()
        optimizer.step()
        assert torch.equal(parameter.grad, gradient)
    return parameter.detach()


def orthogonal(size):
    return torch.linalg.qr(gradients(1, size, size)[0])[0]


@pytest.mark.parametrize(("shape", "arguments"), [((5,), {}), ((), {}), ((5, 4), {"max_side": 1})])
def test_what_is_not_turned_gets_adamw(shape, arguments):
    start, given = torch.ones(shape, dtype=torch.float64), gradients(12, *shape)
    expected = trained(start, given, torch.optim.AdamW, weight_decay=0.1)
    assert torch.allclose(trained(start, given, weight_decay=0.1, **arguments), expected, atol=1e-9)


@pytest.mark.parametrize("basis_every", [1, 5])
def test_it_sees_no_difference_between_a_matrix_and_the_same_matrix_turned(basis_every):
    """AdamW does: what it learns depends on the coordinates in which the weights happen to be written."""
    left, right = orthogonal(5), orthogonal(4)
    start, given = torch.ones(5, 4, dtype=torch.float64), gradients(25, 5, 4)
    for kind, same in ((SOAP, True), (torch.optim.AdamW, False)):
        arguments = {"basis_every": basis_every} if kind is SOAP else {}
        there = trained(left @ start @ right, [left @ g @ right for g in given], kind, **arguments)
        assert torch.allclose(there, left @ trained(start, given, kind, **arguments) @ right, atol=1e-6) is same


def by_the_book(start, given, ahead, lr=0.01, beta=0.9, beta2=0.999, basis_beta=0.95, basis_every=3):
    """A matrix after these gradients: the momentum stands as it is, and is turned in each step. `ahead`: as in
    step_ahead."""
    w, m, v = start.clone(), torch.zeros_like(start), torch.zeros_like(start)
    sides = bases = None
    for step, g in enumerate(given, 1):
        products = [g @ g.T, g.T @ g]
        if sides is None:
            sides, bases = products, [torch.linalg.eigh(each)[1] for each in products]
        else:
            sides = [basis_beta * a + (1 - basis_beta) * b for a, b in zip(sides, products, strict=True)]
            if step % basis_every == 0:
                bases = [torch.linalg.qr(a @ b)[0] for a, b in zip(sides, bases, strict=True)]
        left, right = bases
        m = beta * m + (1 - beta) * g
        v = beta2 * v + (1 - beta2) * (left.T @ g @ right) ** 2
        moved = lr / (1 - beta**step) * m + ahead[0] * (g - m / ahead[1])
        w = w * (1 - lr * 0.01) - left @ (left.T @ moved @ right / ((v / (1 - beta2**step)).sqrt() + 1e-8)) @ right.T
    return w


@pytest.mark.parametrize("ahead", [(0.0, 1.0), (0.02, 0.7)])
def test_a_momentum_that_is_kept_in_the_basis_gives_what_one_does_that_is_turned_each_time(ahead):
    start, given = torch.ones(5, 4, dtype=torch.float64), gradients(20, 5, 4)
    parameter = nn.Parameter(start.clone())
    optimizer = SOAP([parameter], lr=0.01, basis_every=3)
    for gradient in given:
        parameter.grad = gradient
        optimizer.step_ahead(*ahead)
    assert torch.allclose(parameter.detach(), by_the_book(start, given, ahead), atol=1e-9)


def test_the_momentum_of_an_older_checkpoint_is_turned():
    parameter, given = nn.Parameter(torch.ones(5, 4, dtype=torch.float64)), gradients(8, 5, 4)
    optimizer = SOAP([parameter], lr=0.01, basis_every=3)
    for number, gradient in enumerate(given):
        if number == 5:
            state = optimizer.state[parameter]
            state["exp_avg"] = state["left_basis"] @ state.pop("turned_avg") @ state["right_basis"].T
        parameter.grad = gradient
        optimizer.step()
    expected = trained(torch.ones(5, 4, dtype=torch.float64), given, basis_every=3)
    assert torch.allclose(parameter.detach(), expected, atol=1e-12)


def test_a_convolution_is_a_matrix_of_its_output_channels():
    start, given = torch.ones(5, 2, 3, 3, dtype=torch.float64), gradients(8, 5, 2, 3, 3)
    flat = trained(start.reshape(5, 18), [g.reshape(5, 18) for g in given])
    assert torch.equal(trained(start, given).reshape(5, 18), flat)


@pytest.mark.parametrize(
    ("shape", "arguments", "rotated"),
    [
        ((3, 9), {}, {"left": 3, "right": 9}),
        ((3, 9), {"max_side": 8}, {"left": 3}),
        ((3, 9), {"sides": "smaller"}, {"left": 3}),
        ((9, 3), {"sides": "smaller"}, {"right": 3}),
        ((9, 2, 3), {"sides": "smaller"}, {"right": 6}),
        ((3, 3), {"sides": "smaller"}, {"left": 3}),
        ((9, 1), {"sides": "smaller"}, {}),
        ((9, 10), {"sides": "smaller", "max_side": 8}, {}),
        ((9,), {"sides": "smaller"}, {}),
    ],
)
def test_which_sides_are_rotated(shape, arguments, rotated):
    parameter = nn.Parameter(torch.ones(shape))
    optimizer = SOAP([parameter], **arguments)
    parameter.grad = gradients(1, *shape)[0].float()
    optimizer.step()
    moments = {"step": (), "turned_avg": shape, "exp_avg_sq": shape}
    squares = {name: (n, n) for side, n in rotated.items() for name in (side, f"{side}_basis")}
    kept = {key: tuple(value.shape) for key, value in optimizer.state[parameter].items()}
    assert kept == {**moments, **squares}


def test_with_one_side_it_sees_no_difference_when_that_side_is_turned():
    turn, other, arguments = orthogonal(4), orthogonal(9), {"sides": "smaller", "basis_every": 3}
    start, given = torch.ones(4, 9, dtype=torch.float64), gradients(25, 4, 9)
    plain = trained(start, given, **arguments)
    assert torch.allclose(trained(turn @ start, [turn @ g for g in given], **arguments), turn @ plain, atol=1e-6)
    assert not torch.allclose(trained(start @ other, [g @ other for g in given], **arguments), plain @ other, atol=1e-6)


def test_it_climbs_when_asked_to_and_calls_the_closure():
    parameter = nn.Parameter(torch.zeros(2, 2))
    optimizer = SOAP([parameter], lr=0.1, maximize=True)

    def closure():
        optimizer.zero_grad()
        total = parameter.sum()
        total.backward()
        return total

    assert optimizer.step(closure) == 0
    assert closure() > 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"betas": (1.0, 0.9)},
        {"basis_beta": 1.0},
        {"basis_every": 0},
        {"basis_every": 2.5},
        {"max_side": -1},
        {"eps": -1.0},
        {"weight_decay": -0.1},
        {"sides": "larger"},
        {"sides": True},
    ],
)
def test_what_is_out_of_range_is_refused(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be"):
        SOAP([nn.Parameter(torch.zeros(2))], **wrong)
