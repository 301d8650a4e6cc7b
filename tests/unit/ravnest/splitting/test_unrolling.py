"""An unrolled graph is the one that an export of the whole model gives; a model that does not repeat has none."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ravnest.splitting import CapturedModel, capture, captured_short, capturing
from ravnest.splitting.thinning import Blocks, keep_first
from ravnest.splitting.unrolling import LEAST_BLOCKS, unrolled
from tests.unit.ravnest.splitting.test_thinning import Block, Deep

COUNT = LEAST_BLOCKS + 2
SAMPLE = (torch.ones(3, 3),)

Take = Callable[[int, nn.Module, Tensor, Tensor], Tensor]


def deep(take: Take = lambda i, block, x, start: block(x), **given: Any) -> nn.Module:
    with torch.device("meta"):
        return Deep(take, count=COUNT, **given)


def exported_whole(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> CapturedModel:
    with monkeypatch.context() as patched:
        patched.setattr(capturing, "unrolled", lambda *_: ())
        return capture(model, SAMPLE)


class Normed(nn.Module):
    """A block that changes a buffer, passes a gradient around a part, and changes between the modes."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            scale = x.abs().amax()
        if self.training:
            x = x + torch.rand_like(x)
        changed: Tensor = self.linear(self.norm(x)).view(x.shape[0], -1) / scale
        return x + changed


def normed(blocks: nn.ModuleList) -> None:
    for number in range(len(blocks)):
        blocks[number] = Normed()


@pytest.mark.parametrize(
    ("take", "change"),
    [
        (lambda i, block, x, start: block(x), lambda blocks: None),
        (lambda i, block, x, start: block(x) + start, lambda blocks: None),  # what stands before all blocks
        (lambda i, block, x, start: block(x) * torch.arange(4, device=x.device), lambda blocks: None),
        (lambda i, block, x, start: block(x), normed),
    ],
)
def test_the_unrolled_graph_is_that_of_the_whole_export(
    take: Take, change: Callable[[nn.ModuleList], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = deep(take, change=change)
    assert next(unrolled(model, SAMPLE, {}), None) is not None
    ours, theirs = capture(model, SAMPLE), exported_whole(model, monkeypatch)
    assert ours.costs == theirs.costs  # the fingerprint of the graphs, and each unit's costs and name
    assert ours.batch_is_dynamic
    assert ours.positions == theirs.positions
    assert [each.scope for each in ours.train.operations] == [each.scope for each in theirs.train.operations]
    for start in range(len(ours.units)):
        mine, other = (one.span(start, start + 1) for one in (ours, theirs))
        assert [spec.name for spec in mine.weight_specs] == [spec.name for spec in other.weight_specs]
        assert [spec.shape for spec in mine.outputs] == [spec.shape for spec in other.outputs]
        assert mine.changed == other.changed
    assert captured_short(theirs, model) is None
    keep_first(model, Blocks("blocks", COUNT))
    of_two = captured_short(ours, model)
    assert of_two is not None
    assert of_two.costs == capture(model, SAMPLE).costs


@pytest.mark.parametrize(
    "take",
    [
        lambda i, block, x, start: block(x) * (2.0 if i == COUNT - 1 else 1.0),  # another number
        lambda i, block, x, start: torch.tanh(block(x)) if i == 4 else torch.relu(block(x)),  # another operator
        lambda i, block, x, start: block(start if i == 5 else x),  # another input
        lambda i, block, x, start: block(x).detach() if i == 6 else block(x),  # without a gradient
        lambda i, block, x, start: block(x) if i % 2 else block(block(x)),  # by turns
        lambda i, block, x, start: block(x) if block.training or i != 7 else x,  # in evaluation only
        lambda i, block, x, start: block(x) * torch.tensor([1.0, 1.0, 1.0, float(i == 7)]),  # another constant
    ],
)
def test_a_model_that_does_not_repeat_its_second_block_is_not_unrolled(take: Take) -> None:
    assert next(unrolled(deep(take), SAMPLE, {}), None) is None


@pytest.mark.parametrize("enabled", [True, False])
def test_what_the_meta_device_does_not_show_of_a_context_is_exported_whole(enabled: bool) -> None:
    def take(i: int, block: nn.Module, x: Tensor, start: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled and i == COUNT - 1):
            return torch.Tensor.float(block(x))

    assert (next(unrolled(deep(take), SAMPLE, {}), None) is None) == enabled


def test_a_block_without_gradients_is_not_like_the_others() -> None:
    def take(number: int, block: nn.Module, x: Tensor, start: Tensor) -> Tensor:
        with torch.set_grad_enabled(number != 5):
            changed: Tensor = block(x)
        return x + changed

    assert next(unrolled(deep(take), SAMPLE, {}), None) is None


def test_few_blocks_and_models_with_values_are_not_unrolled() -> None:
    with torch.device("meta"):
        few = Deep(count=LEAST_BLOCKS - 1)
    assert next(unrolled(few, SAMPLE, {}), None) is None
    assert next(unrolled(Deep(count=COUNT), SAMPLE, {}), None) is None


def test_the_model_is_not_changed() -> None:
    model = deep()
    before = {name: id(tensor) for name, tensor in model.state_dict(keep_vars=True).items()}
    assert model.training
    assert next(unrolled(model, SAMPLE, {}), None) is not None
    assert {name: id(tensor) for name, tensor in model.state_dict(keep_vars=True).items()} == before
    assert model.training
    assert isinstance(model.get_submodule("blocks.9"), Block)
