"""A stage as a module: names, replaced parameters, modes, and what it refuses."""

import copy
import traceback

import pytest
import torch
from torch import Tensor, nn

from ravnest.errors import InvalidInput
from ravnest.splitting import StageModule, initial_weights
from tests.unit.ravnest.splitting.models import CASES, CNN, Case, captured, captured_case, direction, seeded


def whole(name: str) -> StageModule:
    model = captured_case(name)
    return StageModule(model.span(0, len(model.units)), initial_weights(CASES[name].make, 0))


def test_batch_norm_statistics_change_once_per_training_forward_only() -> None:
    stage = whole("cnn")
    images = CASES["cnn"].args[0]
    counter = dict(stage.named_buffers())["stem.1.num_batches_tracked"]
    stage.train()
    stage(images)
    stage(images)
    assert int(counter) == 2
    stage.eval()
    before = {name: buffer.clone() for name, buffer in stage.named_buffers()}
    stage(images)
    assert all(torch.equal(before[name], buffer) for name, buffer in stage.named_buffers())


def test_all_modules_are_in_the_mode_that_was_asked_for_and_are_visited_only_where_it_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = captured_case("cnn")
    loss = nn.Sequential(nn.Dropout()).eval()
    stage = StageModule(program.span(0, len(program.units)), initial_weights(CASES["cnn"].make, 0), loss=loss)
    assert all(module.training for module in stage.modules()), "the loss, too"
    visits: list[bool] = []
    monkeypatch.setattr(nn.Dropout, "train", lambda self, mode=True: visits.append(mode))
    for mode in (True, False, False, True, True):
        assert stage.train(mode) is stage
        assert {module.training for module in stage.children()} == {mode}
    assert visits == [False, True]


def test_a_replaced_parameter_is_used_at_once_and_old_graphs_keep_the_old_one() -> None:
    model = captured_case("gpt")
    stage = StageModule(model.span(0, len(model.units)), initial_weights(CASES["gpt"].make, 0)).eval()
    (ids,) = CASES["gpt"].args
    old = dict(stage.named_parameters())["norm.weight"]
    (first,) = stage(ids)
    new = nn.Parameter(old.detach() * 2)
    stage.set_parameter("norm.weight", new)
    (second,) = stage(ids)
    first.backward(direction(first))
    kept = None if old.grad is None else old.grad.clone()
    assert kept is not None
    assert new.grad is None
    second.backward(direction(second))
    assert new.grad is not None
    assert torch.equal(old.grad, kept)
    assert not torch.equal(first, second)
    reference = seeded(CASES["gpt"]).eval()
    output = reference(ids)
    output.backward(direction(output))
    assert torch.equal(reference.norm.weight.grad, kept)


def test_refuses_parameters_it_does_not_hold_or_of_another_shape() -> None:
    stage = whole("gpt")
    with pytest.raises(InvalidInput, match="no parameter 'missing'"):
        stage.set_parameter("missing", nn.Parameter(torch.zeros(1)))
    with pytest.raises(InvalidInput, match=r"'norm.weight' has shape \(16,\), not \(3,\)"):
        stage.set_parameter("norm.weight", nn.Parameter(torch.zeros(3)))


def test_refuses_weights_that_are_missing_or_of_another_kind() -> None:
    model = captured_case("gpt")
    program = model.span(0, len(model.units))
    weights = initial_weights(CASES["gpt"].make, 0)
    with pytest.raises(InvalidInput, match=r"lack 'norm.weight'"):
        StageModule(program, {key: value for key, value in weights.items() if key != "norm.weight"})
    with pytest.raises(InvalidInput, match=r"norm.weight: expected torch.float32 of shape \(16,\)"):
        StageModule(program, {**weights, "norm.weight": torch.zeros(3)})
    with pytest.raises(InvalidInput, match=r"takes 1 tensors \(ids\), got 0"):
        StageModule(program, weights)()


def test_weights_are_copied_unless_given_away() -> None:
    model = captured_case("cnn")
    program = model.span(0, len(model.units))
    weights = initial_weights(CASES["cnn"].make, 0)
    before = {name: tensor.clone() for name, tensor in weights.items()}
    StageModule(program, weights).train()(*CASES["cnn"].args)
    assert all(torch.equal(before[name], tensor) for name, tensor in weights.items())
    given = dict(StageModule(program, weights, copy=False).named_parameters())
    assert given["head.weight"].data_ptr() == weights["head.weight"].data_ptr()


def test_a_copied_stage_shares_nothing() -> None:
    stage = whole("cnn").train()
    twin = copy.deepcopy(stage)
    twin(*CASES["cnn"].args)
    assert int(dict(twin.named_buffers())["stem.1.num_batches_tracked"]) == 1
    assert int(dict(stage.named_buffers())["stem.1.num_batches_tracked"]) == 0


def test_submodules_may_be_called_like_attributes_of_the_stage() -> None:
    class Names(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.program = nn.Linear(3, 3)
            self.output_needs_gradient = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.output_needs_gradient(self.program(x))

    case = Case(Names, (torch.ones(2, 3),))
    model = captured(case)
    stage = StageModule(model.span(0, 2), initial_weights(Names, 0))
    assert stage.state_dict().keys() == Names().state_dict().keys()
    assert torch.equal(stage(torch.ones(2, 3))[0], seeded(case)(torch.ones(2, 3)))


def test_a_value_that_only_passes_through_gathers_its_whole_gradient() -> None:
    class Skip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            first = self.layers[0](x)
            return self.layers[2](self.layers[1](first).sin()) + first

    model = captured(Case(Skip, (torch.ones(2, 3),)))
    middle = StageModule(model.span(1, 2), initial_weights(Skip, 0))
    leaf = torch.ones(2, 3, requires_grad=True)
    passed, _ = outputs = middle(*[leaf if s.needs_gradient else torch.ones(2, 3) for s in middle.program.inputs])
    assert passed is leaf
    torch.autograd.backward(outputs, [torch.ones(2, 3), torch.zeros(2, 3)])
    assert torch.equal(leaf.grad, torch.ones(2, 3))


def test_a_failure_shows_the_generated_line() -> None:
    stage = whole("gpt")
    with pytest.raises(RuntimeError) as caught:
        stage(torch.zeros(2, 5, dtype=torch.long))
    shown = "".join(traceback.format_exception(caught.value))
    assert "<ravnest units 0-" in shown
    assert "f_aten_" in shown


def test_state_dict_of_a_cnn_is_that_of_the_model() -> None:
    assert list(dict(whole("cnn").named_parameters())) == [name for name, _ in CNN().named_parameters()]


def test_a_replaced_buffer_is_used_at_once() -> None:
    stage = whole("cnn").eval()
    (before,) = stage(*CASES["cnn"].args)
    stage.set_buffer("stem.1.running_mean", torch.full((6,), 5.0))
    (after,) = stage(*CASES["cnn"].args)
    assert not torch.equal(before, after)
    with pytest.raises(InvalidInput, match=r"no buffer 'missing'"):
        stage.set_buffer("missing", torch.zeros(6))
    with pytest.raises(InvalidInput, match=r"'stem.1.running_mean' is torch.float32 \(6,\), not torch.float64"):
        stage.set_buffer("stem.1.running_mean", torch.zeros(6, dtype=torch.float64))
