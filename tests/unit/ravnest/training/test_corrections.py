import pytest
import torch
from torch import nn

from ravnest.training.corrections import CORRECTIONS, DISCOUNTED_UPDATES, LEAD, corrected, default_correction
from ravnest.training.optimizer import OptimizerConfig, build_optimizer

KNOWN = [
    {"name": "adam"},
    {"name": "adam", "amsgrad": True, "weight_decay": 0.1},
    {"name": "adamw"},
    {"name": "adamw", "fused": True, "betas": [0.8, 0.95]},
    {"name": "nadam"},
    {"name": "soap"},
    {"name": "muon"},
    {"name": "muon", "nesterov": False, "weight_decay": 0.0},
    {"name": "sgd", "momentum": 0.9},
    {"name": "sgd", "momentum": 0.8, "nesterov": True, "weight_decay": 0.1},
]
UNKNOWN = [
    {"name": "sgd"},
    {"name": "adamw", "betas": [0.0, 0.999]},
    {"name": "adafactor"},
    {"name": "rmsprop", "momentum": 0.9},
    {"name": "muon", "momentum": 0.0},
]
SHAPE = (3, 4)


def make(config, start=None):
    config = OptimizerConfig(**{"lr": 0.01, **config})
    parameter = nn.Parameter(torch.ones(SHAPE) if start is None else start.clone())
    return parameter, build_optimizer(config, [("w", parameter)])


def gradients(count):
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(SHAPE, generator=generator) for _ in range(count)]


def walk(parameter, step, given, staleness, lr=0.01):
    """The parameter after each step."""
    path = []
    for update, gradient in enumerate(given):
        parameter.grad = gradient.clone()
        step(lr, staleness[update] if isinstance(staleness, list) else staleness, update)
        assert torch.equal(parameter.grad, gradient)
        path.append(parameter.detach().clone())
    return path


@pytest.mark.parametrize("name", CORRECTIONS)
@pytest.mark.parametrize("config", KNOWN)
def test_without_staleness_it_is_the_optimizer_bit_for_bit(config, name):
    parameter, optimizer = make(config)
    plain, stepper = make(config)
    path = walk(parameter, corrected(name, optimizer), gradients(6), 0.0)
    for update, gradient in enumerate(gradients(6)):
        plain.grad = gradient
        stepper.step()
        assert torch.equal(path[update], plain)


@pytest.mark.parametrize("staleness", [0.5, 1.0, 7.0])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adamw_steps_with_its_momentum_extrapolated(staleness, decay):
    parameter, optimizer = make({"name": "adamw", "weight_decay": decay})
    path = walk(parameter, corrected("look_ahead", optimizer), gradients(60), staleness)
    k = LEAD * staleness
    beta, w = 1 - 0.1 * min(1, (1 + LEAD) / (1 + k)), torch.ones(SHAPE).double()
    lr = 0.01 * max(1, staleness) ** -0.5
    m, v, mean = (torch.zeros(SHAPE).double() for _ in range(3))
    for t, gradient in enumerate(gradients(60), 1):
        g = gradient.double()
        ahead = min(k, max(0.0, (1 + LEAD) * 0.1 * (1 - beta**t) / (1 - beta) - 1))
        m = beta * m + (1 - beta) * g
        mean, before = m / (1 - beta**t), mean
        v = 0.999 * v + 0.001 * g * g
        direction = mean + ahead * (mean - before)
        w = w * (1 - lr * decay) - lr * direction / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
        assert torch.allclose(path[t - 1].double(), w, atol=1e-3 * decay + 2e-5)


@pytest.mark.parametrize("staleness", [0.5, 1.0, 7.0, [0.0, 1.0, 3.0, 0.5] * 15])
@pytest.mark.parametrize(
    "config",
    [
        {"name": "adam"},
        {"name": "adam", "amsgrad": True, "foreach": True},
        {"name": "adamw", "weight_decay": 0.1, "fused": True},
    ],
)
def test_one_pass_takes_the_step_and_the_lead_that_two_take(config, staleness):
    """Two are taken where the gradient has to be turned round first: `maximize`."""
    one, optimizer = make(config)
    two, turned = make({**config, "maximize": True})
    path = walk(one, corrected("look_ahead", optimizer), gradients(60), staleness)
    reference = walk(two, corrected("look_ahead", turned), [-gradient for gradient in gradients(60)], staleness)
    assert torch.allclose(torch.stack(path), torch.stack(reference), rtol=0, atol=2e-6)
    for key in ("exp_avg", "exp_avg_sq"):
        assert torch.allclose(optimizer.state[one][key].abs(), turned.state[two][key].abs(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "config",
    [
        {"name": "adam"},
        {"name": "adamw", "weight_decay": 0.1},
        {"name": "adamw", "weight_decay": 0.1, "fused": True},
    ],
)
def test_a_rate_of_zero_leaves_the_weights_and_keeps_the_momentum(config):
    """Where a schedule ends at 0, updates behind the last that was expected."""
    parameter, optimizer = make(config)
    mirror, moved = make(config)
    step, usual = corrected("look_ahead", optimizer), corrected("look_ahead", moved)
    walk(parameter, step, gradients(6)[:3], 1.0)
    walk(mirror, usual, gradients(6)[:3], 1.0)
    before = parameter.detach().clone()
    path = walk(parameter, step, gradients(6)[3:], 1.0, lr=0.0)
    walk(mirror, usual, gradients(6)[3:], 1.0)
    assert all(torch.equal(after, before) for after in path)
    for key in ("exp_avg", "exp_avg_sq"):
        assert torch.equal(optimizer.state[parameter][key], moved.state[mirror][key])


@pytest.mark.parametrize("staleness", [1.0, 3.0])
@pytest.mark.parametrize("beta", [0.9, 0.7, 0.67, 0.66667, 2 / 3])
def test_the_momentum_is_exact_whatever_part_the_lead_has(beta, staleness):
    """Near β₁ = 2/3 the lead is nearly all of a step, from which alone m cannot be found again."""
    parameter, optimizer = make({"name": "adam", "betas": [beta, 0.999]})
    step = corrected("look_ahead", optimizer)
    longer = 1 - (1 - beta) * min(1.0, (1 + LEAD) / (1 + LEAD * staleness))
    m = torch.zeros(SHAPE).double()
    for update, gradient in enumerate(gradients(100)):
        now = staleness if update else 0.0
        walk(parameter, step, [gradient], now)
        coefficient = longer if update else beta
        m = coefficient * m + (1 - coefficient) * gradient.double()
        assert torch.allclose(optimizer.state[parameter]["exp_avg"].double(), m, rtol=0, atol=5e-6)


@pytest.mark.parametrize("beta", [0.5, 0.6, 0.9])
def test_a_first_gradient_that_is_stale_has_nothing_to_lead_from(beta):
    parameter, optimizer = make({"name": "adam", "betas": [beta, 0.999]})
    plain, stepper = make({"name": "adam", "betas": [beta, 0.999]})
    walk(parameter, corrected("look_ahead", optimizer), gradients(1), 1.0)
    walk(plain, corrected("none", stepper), gradients(1), 0.0)
    assert torch.allclose(parameter, plain, rtol=0, atol=1e-7)


@pytest.mark.parametrize("staleness", [0.5, 1.0, 7.0])
@pytest.mark.parametrize(("nesterov", "decay"), [(False, 0.0), (True, 0.0), (False, 0.1)])
def test_sgd_steps_with_its_momentum_extrapolated(staleness, nesterov, decay):
    config = {"name": "sgd", "momentum": 0.9, "nesterov": nesterov, "weight_decay": decay}
    parameter, optimizer = make(config)
    path = walk(parameter, corrected("look_ahead", optimizer), gradients(60), staleness)
    lead = LEAD - nesterov
    k = lead * staleness
    share = min(1, (1 + lead) / (1 + k))
    lr = 0.01 * max(1, staleness) ** -0.5
    mu, w, buffer = 1 - 0.1 * share, torch.ones(SHAPE).double(), torch.zeros(SHAPE).double()
    for t, gradient in enumerate(gradients(60)):
        g = gradient.double() + decay * w
        buffer, before = mu * buffer + g, buffer
        direction = (g + mu * buffer if nesterov else buffer) + k * (buffer - before)
        w = w - lr * share * direction
        assert torch.allclose(path[t].double(), w, atol=2e-2 * decay + 1e-5)


@pytest.mark.parametrize("staleness", [0.5, 1.0, 7.0])
@pytest.mark.parametrize("nesterov", [False, True])
def test_muon_steps_with_its_momentum_extrapolated(staleness, nesterov):
    parameter, optimizer = make({"name": "muon", "momentum": 0.9, "nesterov": nesterov})
    path = walk(parameter, corrected("look_ahead", optimizer), gradients(40), staleness)
    # Without a momentum of its own, Muon makes orthogonal what it is given.
    given, plain = make({"name": "muon", "momentum": 0.0, "nesterov": False})
    lead = LEAD - nesterov
    k = lead * staleness
    beta = 1 - 0.1 * min(1, (1 + lead) / (1 + k))
    m, mean = torch.zeros(SHAPE), torch.zeros(SHAPE)
    for t, g in enumerate(gradients(40), 1):
        ahead = min(k, max(0.0, (1 + lead) * 0.1 * (1 - beta**t) / (1 - beta) - 1))
        m = beta * m + (1 - beta) * g
        mean, before = m / (1 - beta**t), mean
        moved = mean + (ahead if t > 1 else 0.0) * (mean - before)
        given.grad = (1 - beta) * g + beta * moved if nesterov else moved
        plain.param_groups[0]["lr"] = 0.01 * max(1, staleness) ** -0.5
        plain.step()
        assert torch.allclose(path[t - 1], given, rtol=0, atol=1e-2 * 0.01 * t)  # it rounds to bfloat16 within
    assert optimizer.defaults["momentum"] == optimizer.param_groups[0]["momentum"] == 0.9
    assert torch.allclose(optimizer.state[parameter]["momentum_buffer"], m, atol=1e-6)


NOT_SO_EXACT = ("nadam", "soap", "muon")


@pytest.mark.parametrize("config", [c for c in KNOWN if "weight_decay" not in c and c["name"] not in NOT_SO_EXACT])
@pytest.mark.parametrize("staleness", [[0.0] * 4 + [1.0] * 200, [7.0] * 3 + [0.0] * 201, [0.0, 3.0, 1.5, 0.0] * 51])
def test_a_staleness_that_changes_never_changes_how_fast_a_steady_gradient_moves(config, staleness):
    steady = torch.full(SHAPE, 0.5)
    plain, stepper = make({**config, "weight_decay": 0.0})
    parameter, optimizer = make({**config, "weight_decay": 0.0})
    path = walk(parameter, corrected("look_ahead", optimizer), [steady] * 204, staleness)
    reference = walk(plain, corrected("none", stepper), [steady] * 204, 0.0)
    fastest = max(float((a - b).abs().max()) for a, b in zip(path[1:], path, strict=False))
    normal = float((reference[-1] - reference[-2]).abs().max())
    assert fastest <= normal * 1.001
    assert float((path[-1] - path[-2]).abs().max()) == pytest.approx(normal, rel=1e-3)


def quadratic_loss(correction, config, curvature, delay, lr=1.0, updates=400):
    """Of a bowl, after training with gradients of `delay` updates ago."""
    parameter, optimizer = make(config, start=torch.ones(SHAPE))
    step = corrected(correction, optimizer)
    past = [parameter.detach().clone()] * (delay + 1)
    for update in range(updates):
        parameter.grad = curvature * past[0]
        step(lr, float(delay), update)
        past = [*past[1:], parameter.detach().clone()]
    return float(parameter.detach().square().sum())


def test_with_a_delay_of_one_momentum_alone_diverges_where_looking_ahead_converges():
    config = {"name": "sgd", "momentum": 0.9}
    curvature = 0.2  # lr · curvature / (1 − momentum) = 2, of the 38 that are stable without delay
    assert quadratic_loss("none", config, curvature, delay=0) < 1e-6
    assert not quadratic_loss("none", config, curvature, delay=1) < 1.0
    assert quadratic_loss("look_ahead", config, curvature, delay=1) < 1e-4


def test_with_a_long_delay_looking_ahead_bears_a_larger_rate():
    config = {"name": "sgd", "momentum": 0.9}
    curvature = 0.03
    assert not quadratic_loss("none", config, curvature, delay=7) < 1.0
    assert quadratic_loss("look_ahead", config, curvature, delay=7, updates=2000) < 1e-3


@pytest.mark.parametrize("config", KNOWN)
def test_what_a_checkpoint_holds_is_all_that_it_needs(config):
    parameter, optimizer = make(config)
    staleness = [0.0, 1.0, 3.0, 2.0, 2.0, 0.0, 1.0, 1.0]
    path = walk(parameter, corrected("look_ahead", optimizer), gradients(8), staleness)
    half, first = make(config)
    walk(half, corrected("look_ahead", first), gradients(8)[:4], staleness[:4])
    resumed, second = make(config, start=half.detach())
    second.load_state_dict({**second.state_dict(), "state": first.state_dict()["state"]})
    rest = walk(resumed, corrected("look_ahead", second), gradients(8)[4:], staleness[4:])
    assert torch.equal(rest[-1], path[-1])


@pytest.mark.parametrize("config", KNOWN)
def test_no_state_of_the_parameters_size_is_added(config):
    sizes = []
    for staleness in (0.0, 1.0):
        parameter, optimizer = make(config)
        walk(parameter, corrected("look_ahead", optimizer), gradients(2), staleness)
        sizes.append(sum(value.numel() for value in optimizer.state[parameter].values() if value.dim()))
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("config", KNOWN)
def test_the_default_for_an_optimizer_with_a_momentum(config):
    assert default_correction(make(config)[1]) == "look_ahead"


@pytest.mark.parametrize("config", UNKNOWN)
def test_without_a_known_momentum_there_is_nothing_to_look_ahead_by(config):
    _, optimizer = make(config)
    assert default_correction(optimizer) == "none"
    with pytest.raises(ValueError, match="look_ahead needs the momentum of adam, adamw, muon, nadam, sgd or soap"):
        corrected("look_ahead", optimizer)
    with pytest.raises(ValueError, match="look_ahead needs the momentum"):
        OptimizerConfig(**config, correction="look_ahead")
    assert OptimizerConfig(**config, correction="none").correction == "none"


@pytest.mark.parametrize(
    ("name", "staleness", "update", "moved"),
    [
        ("none", 8.0, 0, 1.0),
        ("delay_adaptive", 0.5, 0, 1.0),
        ("delay_adaptive", 8.0, 10_000, 1 / 8),
        ("discount", 1.0, 0, 1.0),
        ("discount", 8.0, 0, 1 / 8),
        ("discount", 16.0, DISCOUNTED_UPDATES // 2, 1 / 4),
        ("discount", 8.0, DISCOUNTED_UPDATES, 1.0),
    ],
)
def test_rates_by_delay(name, staleness, update, moved):
    parameter, optimizer = make({"name": "sgd"})
    parameter.grad = torch.ones(SHAPE)
    corrected(name, optimizer)(0.5, staleness, update)
    assert torch.allclose(parameter, torch.full(SHAPE, 1 - 0.5 * moved))


def test_parameters_without_a_gradient_stay():
    for config in KNOWN:
        parameter, optimizer = make(config)
        corrected("look_ahead", optimizer)(0.1, 1.0, 0)
        assert torch.equal(parameter, torch.ones(SHAPE))
