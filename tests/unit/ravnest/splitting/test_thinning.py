"""Two of many equal blocks stand for all of them, or it is said that they do not."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ravnest.errors import ModelNotSplittable
from ravnest.splitting import CapturedModel, capture
from ravnest.splitting.thinning import Blocks, check_repeats, keep_first, repeated_blocks


class Block(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.dropout = nn.Dropout(0.1)
        self.register_buffer("scale", torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(self.second(torch.relu(self.first(x)))) * self.scale


class Deep(nn.Module):
    """`change` may alter the blocks after they are made; `take` says how block number i is called."""

    def __init__(
        self,
        take: Callable[[int, nn.Module, Tensor, Tensor], Tensor] = lambda i, block, x, start: block(x),
        change: Callable[[nn.ModuleList], object] = lambda blocks: None,
        count: int = 5,
    ) -> None:
        super().__init__()
        self.inward, self.outward = nn.Linear(3, 4), nn.Linear(4, 2)
        self.blocks = nn.ModuleList(Block() for _ in range(count))
        change(self.blocks)
        self.take = take

    def forward(self, x: Tensor) -> Tensor:
        x = start = self.inward(x)
        for number, block in enumerate(self.blocks):
            x = self.take(number, block, x, start)
        return self.outward(x)


def captured(**given: Any) -> tuple[CapturedModel, CapturedModel, Blocks]:
    """The capture of the whole model, that of the short one, and the blocks."""
    with torch.device("meta"):
        model = Deep(**given)
    blocks = repeated_blocks(model)
    assert blocks == Blocks("blocks", 5)
    short = copy.deepcopy(model)
    keep_first(short, blocks)
    sample = (torch.ones(2, 3),)
    return capture(model, sample), capture(short, sample), blocks


@pytest.mark.parametrize(
    "take",
    [
        lambda i, block, x, start: block(x),
        lambda i, block, x, start: block(x) + start,  # what stands before all blocks is read by each
        lambda i, block, x, start: torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False),
    ],
)
def test_a_model_of_equal_blocks_repeats_its_second_one(take: Callable[..., Tensor]) -> None:
    whole, short, blocks = captured(take=take)
    check_repeats(whole.modes, short.modes, blocks)
    assert len(whole.units) > len(short.units)


@pytest.mark.parametrize(
    "take",
    [
        lambda i, block, x, start: block(x) * (2.0 if i == 3 else 1.0),  # another number
        lambda i, block, x, start: torch.tanh(block(x)) if i == 4 else torch.relu(block(x)),  # another operator
        lambda i, block, x, start: block(start if i == 3 else x),  # another input
        lambda i, block, x, start: block(x) if i < 3 else x,  # fewer operations
        lambda i, block, x, start: block(x) if i % 2 else torch.relu(block(x)),  # by turns
    ],
)
def test_a_block_that_does_something_else_is_found(take: Callable[..., Tensor]) -> None:
    whole, short, blocks = captured(take=take)
    with pytest.raises(ModelNotSplittable, match="the blocks of 'blocks' cannot be checked by two of them"):
        check_repeats(whole.modes, short.modes, blocks)


def test_a_block_that_uses_another_s_weights_is_found() -> None:
    model = Deep()
    model.take = lambda i, block, x, start: model.blocks[2 if i == 3 else i](x)
    short = copy.deepcopy(model)
    short.take = lambda i, block, x, start: block(x)
    keep_first(short, Blocks("blocks", 5))
    sample = (torch.ones(2, 3),)
    with pytest.raises(ModelNotSplittable, match="cannot be checked by two of them"):
        check_repeats(capture(model, sample).modes, capture(short, sample).modes, Blocks("blocks", 5))


def _other_width(blocks: nn.ModuleList) -> None:
    blocks[3].first = nn.Linear(4, 4, bias=False)


def _shared(blocks: nn.ModuleList) -> None:
    blocks[3].first.weight = blocks[4].first.weight


def _frozen(blocks: nn.ModuleList) -> None:
    blocks[4].requires_grad_(False)


@pytest.mark.parametrize("change", [_other_width, _shared, _frozen])
def test_blocks_that_are_not_equal_do_not_repeat(change: Callable[[nn.ModuleList], object]) -> None:
    assert repeated_blocks(Deep(change=change)) is None


def test_a_model_has_blocks_where_it_has_more_than_two_equal_ones() -> None:
    assert repeated_blocks(Deep(count=2)) is None
    assert repeated_blocks(nn.Linear(2, 2)) is None
    both = nn.ModuleDict({"small": Deep(), "large": nn.Sequential(*(Block(9) for _ in range(4)))})
    assert repeated_blocks(both) == Blocks("large", 4)


def test_names_move_from_block_to_block() -> None:
    blocks = Blocks("model.layers", 12)
    assert blocks.moved("model.layers.9.mlp.weight", 2) == "model.layers.11.mlp.weight"
    assert blocks.moved("model.layers_2.0.weight", 2) == "model.layers_2.0.weight"
    assert (blocks.index_in("model.layers.10.a"), blocks.index_in("model.norm")) == (10, None)
