"""Draws that a captured graph would freeze are found in the very first plan, and what nobody trains is refused."""

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ravnest.errors import InvalidInput
from ravnest.planning.job_checks import run_once
from ravnest.planning.model_checks import check_forwards, check_numbers, check_trains
from ravnest.splitting import capture, twin_of

OWN = np.random.default_rng(0)
X = torch.ones(3, 4)


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.chance = random.Random(0)
        self.generator = np.random.default_rng(0)
        self.old = np.random.RandomState(0)


def model(forward: object) -> nn.Module:
    return type("Drawing", (Layers,), {"forward": forward})()


def check(made: nn.Module) -> None:
    """With the copy that ran first, and with another one: both say the same."""
    told: list[InvalidInput | None] = []
    for warm in (None, twin_of(made)):
        try:
            output = run_once(made, (X,), {}, "job.yaml", twin=warm)
            check_forwards(made, (X,), {}, "job.yaml", output, warm=warm)
            told.append(None)
        except InvalidInput as error:
            told.append(error)
    assert str(told[0]) == str(told[1])
    if told[0] is not None:
        raise told[0]


def test_a_copy_whose_buffers_change_what_it_gives_is_tried_anew() -> None:
    def forward(self: nn.Module, x: Tensor) -> Tensor:
        self.calls += 1
        return self.b(self.a(x)) * self.calls

    made = model(forward)
    made.register_buffer("calls", torch.zeros(1))
    check(made)


@pytest.mark.parametrize(
    ("draw", "said"),
    [
        (lambda self: random.random() < 2.0, "in training draws from Python's random"),
        (lambda self: np.random.rand() < 2.0, "in training draws from numpy.random"),
        (lambda self: self.chance.random() < 2.0, "draws from the generator 'chance'"),
        (lambda self: self.generator.random() < 2.0, "draws from the generator 'generator'"),
        (lambda self: self.old.rand() < 2.0, "draws from the generator 'old'"),
        (lambda self: OWN.random() < 2.0, "gives other outputs each time"),
        (lambda self: self.training or random.random() < 2.0, "in evaluation draws from Python's random"),
    ],
)
def test_a_draw_that_is_not_torchs_is_refused_whatever_came_of_it(draw: object, said: str) -> None:
    def forward(self: nn.Module, x: Tensor) -> Tensor:
        drawn = draw(self)  # type: ignore[operator]
        return self.b(self.a(x)) * (OWN.random() if "other" in said else float(drawn))

    state = random.getstate()
    with pytest.raises(InvalidInput, match=rf"^job\.yaml: model: the forward of Drawing .*{said}.*torch\.rand"):
        check(model(forward))
    assert random.getstate() == state


def test_what_torch_draws_passes_and_costs_no_random_number() -> None:
    drawing = model(lambda self, x: self.b(nn.functional.dropout(self.a(x))) * torch.rand(4))
    before = torch.get_rng_state()
    check(drawing)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("frozen", "said"), [(("a", "b"), "all 4 parameters are frozen"), (("b",), "parameters that the forward uses")]
)
def test_a_model_that_nothing_trains_is_refused(frozen: tuple[str, ...], said: str) -> None:
    made = model(lambda self, x: self.b(x))
    for name in frozen:
        made.get_submodule(name).requires_grad_(False)
    with pytest.raises(InvalidInput, match=rf"^job\.yaml: model: .*{said}.* nothing to train"):
        check_trains(capture(made, (X,)), made, "job.yaml")
    made.b.weight.requires_grad_(True)
    check_trains(capture(made, (X,)), made, "job.yaml")


def test_shapes_that_change_with_each_forward_are_seen() -> None:
    counter = SimpleNamespace(calls=0)

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        counter.calls += 1
        return self.b(self.a(x))[: 1 + counter.calls % 2]

    with pytest.raises(InvalidInput, match="gives other outputs each time"):
        check(model(forward))


@pytest.mark.parametrize("kind", ["parameter", "buffer", "constant"])
def test_complex_weights_are_refused_by_name_and_complex_constants_are_not(kind: str) -> None:
    made = model(lambda self, x: self.b(self.a(x) * self.turn.real))
    turn = torch.ones(4, dtype=torch.complex64)
    if kind == "parameter":
        made.turn = nn.Parameter(turn)
    else:
        made.register_buffer("turn", turn, persistent=kind == "buffer")
    captured = capture(made, (X,))
    if kind == "constant":
        check_numbers(captured, "job.yaml")
        return
    with pytest.raises(InvalidInput, match=r"^job\.yaml: model: 'turn' is torch\.complex64, .*view_as_complex"):
        check_numbers(captured, "job.yaml")


@pytest.mark.parametrize("given", [False, True], ids=["another copy", "the copy that ran"])
def test_a_forward_of_a_large_model_is_run_as_seldom_as_can_be(given: bool) -> None:
    modes = []

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        modes.append(self.training)
        return self.b(nn.functional.dropout(self.a(x), training=self.training))

    made = model(forward)
    warm = twin_of(made) if given else None
    check_forwards(made, (X,), {}, "job.yaml", run_once(made, (X,), {}, "job.yaml", twin=warm), warm=warm)
    assert modes == [*([True] * (2 if given else 3)), False, False]


def test_a_re_entrant_checkpoint_is_refused_and_the_other_kind_is_not() -> None:
    def checkpointed(re_entrant: bool) -> nn.Module:
        return model(lambda self, x: torch.utils.checkpoint.checkpoint(self.b, self.a(x), use_reentrant=re_entrant))

    with pytest.raises(InvalidInput, match=r"checkpoint with use_reentrant=True.*(?s:.*)use_reentrant=False"):
        check(checkpointed(True))
    check(checkpointed(False))


def on_parameter(made: nn.Module) -> None:
    made.a.weight.register_hook(lambda gradient: gradient.clamp(-9.0, 9.0))


def on_accumulated(made: nn.Module) -> None:
    made.b.bias.register_post_accumulate_grad_hook(lambda parameter: None)


def on_module(made: nn.Module) -> None:
    made.a.register_full_backward_hook(lambda module, into, out: None)


def before_module(made: nn.Module) -> None:
    made.register_full_backward_pre_hook(lambda module, gradients: None)


@pytest.mark.parametrize(
    ("put", "said"),
    [
        (on_parameter, "the parameter 'a.weight' has a hook"),
        (on_accumulated, "the parameter 'b.bias' has a hook"),
        (on_module, "the module 'a' has a hook"),
        (before_module, "the model has a hook"),
    ],
)
def test_a_hook_on_gradients_is_refused_by_name(put: Callable[[nn.Module], None], said: str) -> None:
    made = model(lambda self, x: self.b(self.a(x)))
    check(made)
    put(made)
    with pytest.raises(InvalidInput, match=rf"^job\.yaml: model: {said} on its gradients, (?s:.*)frozen"):
        check(made)


def test_a_hook_on_a_tensor_of_the_forward_is_refused() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        hidden = self.a(x)
        hidden.register_hook(lambda gradient: gradient.clamp(-9.0, 9.0))
        return self.b(hidden)

    register = Tensor.register_hook
    with pytest.raises(InvalidInput, match=r"puts a hook on the gradients of a tensor of shape \(3, 4\)"):
        check(model(forward))
    assert Tensor.register_hook is register


def test_a_number_that_each_forward_changes_is_refused_by_name_and_a_cache_is_not() -> None:
    def counting(self: Any, x: Tensor) -> Tensor:
        self.a.weight_of_noise = getattr(self.a, "weight_of_noise", 1.0) / 2
        return self.b(self.a(x))

    def caching(self: Any, x: Tensor) -> Tensor:
        self.a.longest = len(x)
        return self.b(self.a(x))

    made = model(counting)
    said = r"'a\.weight_of_noise' each time \(from 0\.5 to 0\.25\)(?s:.*)register_buffer"
    with pytest.raises(InvalidInput, match=said):
        check(made)
    assert not hasattr(made.a, "weight_of_noise")
    check(model(caching))
