import gc

import pytest
import torch
from torch import nn

from ravnest.errors import InvalidInput
from ravnest.training.optimizer import OptimizerConfig
from ravnest.training.weights import VersionedWeights


class Small(nn.Module):
    """Two trained layers and a frozen one, with a 0-dim parameter."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 5)
        self.frozen = nn.Linear(5, 5).requires_grad_(False)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.second = nn.Linear(5, 2)

    def forward(self, x):
        return self.second(self.scale * torch.tanh(self.frozen(torch.tanh(self.first(x)))))

    def set_parameter(self, name, parameter):
        owner, _, leaf = name.rpartition(".")
        setattr(self.get_submodule(owner), leaf, parameter)


TRAINED = ("scale", "first.weight", "first.bias", "second.weight", "second.bias")
ELEMENTS = 1 + 20 + 5 + 10 + 2


def make(**optimizer):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = Small()
    return module, VersionedWeights(module, OptimizerConfig(**{"lr": 0.05, **optimizer}))


def micro_batches(count):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(3, 4, generator=generator) for _ in range(count)]


def accumulate(module, weights, x, divisor=1):
    parameters = weights.current()
    (module(x).square().mean() / divisor).backward()
    weights.collect(parameters)


@pytest.mark.parametrize("copied", [True, False])
@pytest.mark.parametrize(
    "optimizer",
    [
        {"name": "adamw"},
        {"name": "adamw", "fused": True},
        {"name": "sgd", "momentum": 0.9, "nesterov": True},
        {"name": "nadam", "betas": [0.99, 0.999]},
        {"name": "adafactor"},
    ],
)
def test_one_version_is_a_plain_loop_bit_for_bit(optimizer, copied):
    module, weights = make(**optimizer)
    plain, _ = make(**optimizer)
    config = OptimizerConfig(lr=0.05, **optimizer)
    kind = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD, "nadam": torch.optim.NAdam}
    kind["adafactor"] = torch.optim.Adafactor
    stepper = kind[config.name]([p for p in plain.parameters() if p.requires_grad], lr=0.05, **config.arguments)
    for update in range(5):
        for x in micro_batches(3):
            accumulate(module, weights, x + update, divisor=3)
            (plain(x + update).square().mean() / 3).backward()
        stepper.param_groups[0]["lr"] = 0.05 / (update + 1)
        stepper.step()
        stepper.zero_grad()
        weights.step(0.05 / (update + 1), copy=copied)
    assert weights.version == 5
    ours, theirs = module.state_dict(), plain.state_dict()
    assert {name: torch.equal(ours[name], theirs[name]) for name in theirs} == dict.fromkeys(theirs, True)


GROUPS = [{"match": "*.bias", "weight_decay": 0.0, "betas": [0.5, 0.9]}, {"match": "second.*", "lr": 0.1}]


def test_groups_are_those_of_a_plain_loop_bit_for_bit_and_are_resumed_by_name():
    module, weights = make(groups=GROUPS)
    plain, _ = make()
    named = {name: p for name, p in plain.named_parameters() if p.requires_grad}
    biases = [p for name, p in named.items() if name.endswith(".bias")]
    second = [named["second.weight"]]
    rest = [p for p in named.values() if all(p is not other for other in (*biases, *second))]
    stepper = torch.optim.AdamW(
        [{"params": biases, "weight_decay": 0.0, "betas": (0.5, 0.9)}, {"params": second, "lr": 0.1}, {"params": rest}],
        lr=0.05,
    )

    def both(x):
        accumulate(module, weights, x)
        plain(x).square().mean().backward()
        stepper.step()
        stepper.zero_grad()
        weights.step(0.05)

    for x in micro_batches(3):
        both(x)
    state = weights.optimizer_state()
    assert {name for name, _ in state} == named.keys()
    weights = VersionedWeights(module, OptimizerConfig(lr=0.05, groups=GROUPS), version=3)
    weights.load_optimizer_state(state)
    for x in micro_batches(2):
        both(x + 1)
    ours, theirs = module.state_dict(), plain.state_dict()
    assert {name: torch.equal(ours[name], theirs[name]) for name in theirs} == dict.fromkeys(theirs, True)


def test_gradients_of_different_versions_add_up():
    module, weights = make()
    one, two, three = micro_batches(3)
    early, loss = weights.current(), module(one).square().mean()
    accumulate(module, weights, two)
    weights.step(0.05)
    (alone,) = torch.autograd.grad(loss, [early["second.weight"]], retain_graph=True)
    accumulate(module, weights, three)
    sofar = weights.current()["second.weight"].grad.clone()
    loss.backward()
    weights.collect(early)
    assert torch.equal(weights.current()["second.weight"].grad, sofar + alone)


def test_the_gradient_is_held_once_and_empty_after_the_step():
    module, weights = make()
    early = weights.current()
    first, second, third = (module(x).square().mean() for x in micro_batches(3))
    first.backward()
    weights.collect(early)
    held = early["first.weight"].grad
    weights.adopt(weights.names, weights.flat())  # a new version in the middle of an update
    assert weights.current()["first.weight"].grad is held
    second.backward()
    weights.collect(early)
    assert early["first.weight"].grad is held
    assert weights.gradient_bytes == 4 * ELEMENTS
    weights.step(0.05)
    assert weights.gradient_bytes == 0
    assert early["first.weight"].grad is None
    third.backward()
    weights.collect(early)
    assert weights.gradient_bytes == 4 * ELEMENTS


def test_the_norm_and_the_scale():
    module, weights = make(name="sgd")
    assert weights.norm_sq() == 0.0
    accumulate(module, weights, micro_batches(1)[0])
    gradient = torch.cat([p.grad.flatten() for p in weights.current().values()])
    before = weights.flat()
    assert weights.norm_sq() == pytest.approx(float(gradient.double().square().sum()), rel=1e-6)
    weights.step(0.5, 0.25)
    assert torch.allclose(weights.flat(), before - 0.5 * 0.25 * gradient, atol=1e-7)


def test_flat_follows_the_names():
    module, weights = make()
    assert weights.names == TRAINED
    state = module.state_dict()
    assert torch.equal(weights.flat(), torch.cat([state[name].flatten() for name in TRAINED]))
    assert torch.equal(
        weights.flat(("second.bias", "scale")), torch.cat([state["second.bias"], state["scale"].view(1)])
    )
    assert weights.flat(()).shape == (0,)
    assert weights.shapes(("scale", "second.weight")) == {"scale": (), "second.weight": (2, 5)}
    assert torch.equal(weights.frozen("frozen.weight"), state["frozen.weight"])
    before = weights.flat()
    before.zero_()
    assert float(weights.flat().abs().sum()) > 0


@pytest.mark.parametrize("copied", [True, False])
def test_corrections_and_adoption_reach_the_module_and_leave_the_version(copied):
    module, weights = make()
    names = ("second.weight", "scale")
    other = weights.flat(("first.weight",))
    weights.adopt(names, torch.arange(11.0), copy=copied)
    assert torch.equal(module.second.weight.flatten(), torch.arange(10.0))
    assert module.scale.item() == 10.0
    weights.add_correction(names, torch.full((11,), 0.5), copy=copied)
    assert torch.equal(weights.flat(names), torch.arange(11.0) + 0.5)
    assert torch.equal(module.second.weight.flatten(), torch.arange(10.0) + 0.5)
    assert torch.equal(weights.flat(("first.weight",)), other)
    assert weights.version == 0
    weights.add_correction((), torch.empty(0), copy=copied)


@pytest.mark.parametrize("copied", [True, False])
@pytest.mark.parametrize("change", ["adopt", "add_correction"])
def test_a_vector_that_was_given_stays_the_givers(change, copied):
    """It may be a message's own buffer, or an anchor: weights that shared its memory would change with it."""
    module, weights = make()
    names = ("second.weight", "scale")
    vector = torch.arange(11.0)
    getattr(weights, change)(names, vector, copy=copied)
    after = weights.flat(names)
    vector.zero_()
    assert torch.equal(weights.flat(names), after)
    vector.copy_(torch.arange(11.0))
    accumulate(module, weights, micro_batches(1)[0])
    weights.step(0.05, copy=False)
    assert not torch.equal(weights.flat(names), after)
    assert torch.equal(vector, torch.arange(11.0))


@pytest.mark.parametrize("length", [0, 10, 12])
def test_a_vector_of_another_length_is_refused(length):
    _, weights = make()
    before = weights.flat()
    with pytest.raises(ValueError, match="2 parameters need 11 elements"):
        weights.adopt(("second.weight", "scale"), torch.zeros(length))
    assert torch.equal(weights.flat(), before)


def test_live_versions_are_counted_in_bytes():
    module, weights = make()
    frozen = 4 * (25 + 5)
    assert (weights.live_versions, weights.weight_bytes) == (1, 4 * ELEMENTS + frozen)
    early = weights.current()
    accumulate(module, weights, micro_batches(1)[0])
    weights.step(0.05, copy=True)
    assert (weights.live_versions, weights.weight_bytes) == (2, 2 * 4 * ELEMENTS + frozen)
    weights.adopt(("second.weight",), torch.zeros(10))
    assert weights.live_versions == 2
    del early
    gc.collect()
    assert (weights.live_versions, weights.weight_bytes) == (1, 4 * ELEMENTS + frozen)
    accumulate(module, weights, micro_batches(1)[0])
    weights.step(0.05, copy=False)
    assert (weights.live_versions, weights.weight_bytes) == (1, 4 * ELEMENTS + frozen)
    assert weights.optimizer_bytes == 2 * 4 * ELEMENTS + 4 * len(TRAINED)


def test_without_a_copy_the_module_keeps_its_parameters():
    module, weights = make()
    before = module.first.weight
    accumulate(module, weights, micro_batches(1)[0])
    weights.step(0.05, copy=False)
    assert module.first.weight is before
    weights.add_correction(("first.weight",), torch.zeros(20), copy=True)
    assert module.first.weight is not before


def test_a_version_that_no_forward_has_used_is_not_copied():
    """A merge follows an update directly, and must not take the memory of one version more."""
    module, weights = make()
    early = weights.current()
    accumulate(module, weights, micro_batches(1)[0])
    weights.step(0.05, copy=True)
    after_update, values = dict(module.named_parameters()), weights.flat()
    weights.add_correction(weights.names, torch.ones(ELEMENTS), copy=True)
    assert all(parameter is after_update[name] for name, parameter in module.named_parameters())
    assert torch.equal(weights.flat(), values + 1)
    assert not any(early[name] is after_update[name] for name in TRAINED)
    held = weights.current()
    weights.add_correction(weights.names, torch.ones(ELEMENTS), copy=True)
    assert torch.equal(torch.cat([held[name].detach().flatten() for name in weights.names]), values + 1)
    assert torch.equal(weights.flat(), values + 1 + 1)


@pytest.mark.parametrize("copied", [True, False])
@pytest.mark.parametrize("piece", [1, 7, 10, 100])
def test_a_correction_in_pieces_is_the_whole_one(piece, copied):
    (_, whole), (module, pieces) = make(), make()
    module.second.weight.data = module.second.weight.data.t().contiguous().t()  # in another order in memory
    pieces = VersionedWeights(module, OptimizerConfig(lr=0.05))
    names = ("second.weight", "scale", "first.weight")
    correction = torch.linspace(-1.0, 1.0, 31)
    whole.add_correction(names, correction)
    pieces.current()
    with pieces.correcting(names, copy=copied) as add:
        for at in range(0, 31, piece):
            add(at, correction[at : at + piece])
    assert torch.equal(pieces.flat(), whole.flat())
    assert torch.equal(module.second.weight.flatten(), whole.flat(("second.weight",)))


RESUMED = ["adamw", "nadam", "radam", "rmsprop", "rprop", "asgd", "adagrad", "adafactor", "sgd", "soap"]


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("name", RESUMED)
def test_a_resumed_optimizer_goes_on_bit_for_bit(name, copy):
    module, weights = make(name=name)
    for x in micro_batches(2):
        accumulate(module, weights, x)
        weights.step(0.05)
    resumed_module, _ = make(name=name)
    resumed_module.load_state_dict(module.state_dict())
    resumed = VersionedWeights(resumed_module, OptimizerConfig(name=name, lr=0.05), version=weights.version)
    resumed.load_optimizer_state(weights.optimizer_state(), copy=copy)
    for x in micro_batches(4)[2:]:
        for one, its in ((module, weights), (resumed_module, resumed)):
            accumulate(one, its, x)
            its.step(0.05)
    assert resumed.version == weights.version == 4
    assert torch.equal(resumed.flat(), weights.flat())
    ours, theirs = resumed.optimizer_state(), weights.optimizer_state()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def test_optimizer_state_is_a_copy():
    module, weights = make()
    accumulate(module, weights, micro_batches(1)[0])
    weights.step(0.05)
    state = weights.optimizer_state()
    for tensor in state.values():
        tensor.zero_()
    assert float(weights.optimizer_state()["first.weight", "exp_avg"].abs().sum()) > 0


def test_optimizer_state_is_taken_over_without_a_copy_where_that_is_allowed():
    module, weights = make()
    accumulate(module, weights, micro_batches(1)[0])
    weights.step(0.05)
    given = weights.optimizer_state()
    for copy in (True, False):
        weights.load_optimizer_state(given, copy=copy)
        held = {place: weights.state_of(place[0])[place[1]] for place in given}
        assert all(torch.equal(held[place], given[place]) for place in given)
        assert all((held[place].data_ptr() == given[place].data_ptr()) is not copy for place in given)


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({("nobody", "exp_avg"): torch.zeros(2)}, "is of 'nobody', which this stage does not train"),
        ({("frozen.bias", "exp_avg"): torch.zeros(5)}, "is of 'frozen.bias', which this stage does not train"),
        ({("first.bias", "exp_avg"): torch.zeros(4)}, r"has shape \(4,\), not \(5,\)"),
        ({("first.weight", "left"): torch.zeros(6, 6)}, r"has shape \(6, 6\), not \(5, 4\)"),
    ],
)
def test_optimizer_state_that_fits_nothing_is_refused(state, said):
    _, weights = make()
    with pytest.raises(InvalidInput, match=said):
        weights.load_optimizer_state(state)


def test_a_stage_that_trains_nothing():
    module = Small().requires_grad_(False)
    weights = VersionedWeights(module, OptimizerConfig())
    weights.collect(weights.current())
    weights.step(0.1, 0.5)
    weights.load_optimizer_state({})
    assert (weights.version, weights.names, weights.norm_sq()) == (1, (), 0.0)
    assert weights.flat().shape == (0,)
    assert weights.optimizer_state() == {}
    assert weights.optimizer_bytes == 0
    with pytest.raises(InvalidInput, match="trains nothing"):
        weights.load_optimizer_state({("first.bias", "exp_avg"): torch.zeros(5)})


def borrowing():
    torch.manual_seed(0)
    module = Small()
    return module, VersionedWeights(module, OptimizerConfig(name="sgd", lr=0.1), borrowed=("second.weight",))


def test_what_is_borrowed_is_neither_updated_nor_counted_and_its_gradient_is_taken():
    module, weights = borrowing()
    before = module.second.weight.detach().clone()
    assert "second.weight" not in weights.names
    for _ in range(2):
        parameters = weights.current()
        module(torch.ones(3, 4)).sum().backward()
        weights.collect(parameters)
    expected = torch.autograd.grad(module(torch.ones(3, 4)).sum(), module.second.weight)[0]
    own = [module.get_parameter(name).grad for name in weights.names]
    assert weights.norm_sq() == pytest.approx(sum(float(grad.square().sum()) for grad in own), rel=1e-5)
    weights.step(0.1)
    assert torch.equal(module.second.weight, before)
    assert ("second.weight", "momentum_buffer") not in weights.optimizer_state()
    assert torch.allclose(weights.take_gradients(["second.weight"])["second.weight"], 2 * expected)
    assert not weights.take_gradients(["second.weight"])["second.weight"].any()


def test_borrowed_weights_are_replaced_and_a_graph_in_flight_keeps_the_old_ones():
    module, weights = borrowing()
    old, x = module.second.weight.detach().clone(), torch.ones(3, 4)
    parameters, output = weights.current(), module(x).sum()
    (expected,) = torch.autograd.grad(module(x).sum(), module.first.weight)
    weights.replace({"second.weight": torch.zeros(2, 5)})
    assert not module.second.weight.any()
    assert torch.equal(parameters["second.weight"], old)
    output.backward()
    weights.collect(parameters)
    assert torch.allclose(module.first.weight.grad, expected)
    assert weights.take_gradients(["second.weight"])["second.weight"].any()


def test_gradients_of_borrowers_are_added_and_what_is_lent_is_a_copy():
    module, weights = borrowing()
    parameters = weights.current()
    module(torch.ones(3, 4)).sum().backward()
    weights.collect(parameters)
    before, part = module.first.bias.grad.clone(), torch.full((5,), 2.0)
    weights.add_gradients({"first.bias": part})
    weights.add_gradients({"first.bias": part})
    assert torch.allclose(module.first.bias.grad, before + 4.0)
    assert torch.equal(part, torch.full((5,), 2.0))
    (lent,) = weights.lend(["first.bias"])
    kept = lent.clone()
    weights.step(0.1, copy=False)
    assert torch.equal(lent, kept)
    assert not torch.equal(module.first.bias, kept)
    weights.add_gradients({"first.bias": part})  # where no backward has left one
    assert torch.equal(module.first.bias.grad, part)


@pytest.mark.parametrize("copied", [True, False])
def test_weights_of_bfloat16_are_the_rounded_masters_of_a_plain_loop(copied):
    module, _ = make()
    module.bfloat16()
    start = {"first.weight": torch.full((5, 4), 0.1)}  # between two numbers of bfloat16
    module.first.weight.data.fill_(0.1)
    weights = VersionedWeights(module, OptimizerConfig(lr=1e-3, correction="none"), masters=start)
    plain, _ = make()
    plain.bfloat16()
    plain.first.weight.data.fill_(0.1)
    masters = {name: nn.Parameter(start.get(name, plain.get_parameter(name).data).float()) for name in TRAINED}
    optimizer = torch.optim.AdamW(masters.values(), lr=1e-3)
    for _ in range(4):
        for x in micro_batches(3):
            accumulate(module, weights, x.bfloat16())
            plain.zero_grad()
            plain(x.bfloat16()).square().mean().backward()
            for name, master in masters.items():
                gradient = plain.get_parameter(name).grad.float()
                master.grad = gradient if master.grad is None else master.grad + gradient
        before, kept = weights.current(), weights.current()["first.weight"].clone()
        weights.step(1e-3, copy=copied)
        optimizer.step()
        optimizer.zero_grad()
        for name, master in masters.items():
            plain.get_parameter(name).data.copy_(master.data)
            assert module.get_parameter(name).dtype == torch.bfloat16
            assert torch.equal(module.get_parameter(name), plain.get_parameter(name))
        assert torch.equal(weights.flat(TRAINED), torch.cat([master.data.reshape(-1) for master in masters.values()]))
        assert torch.equal(before["first.weight"], kept) or not copied  # what a graph in flight would hold
        del before
    assert weights.weight_bytes == (4 + 2) * ELEMENTS + 2 * sum(p.numel() for p in module.frozen.parameters())
    assert weights.optimizer_bytes >= 2 * 4 * ELEMENTS
    assert weights.dtype("first.weight") == torch.float32
