"""Of which modules the outputs cross cuts: those that could be narrowed there."""

import pytest
import torch
from torch import Tensor, nn

from examples.home.model import gpt
from ravnest.splitting import capture
from ravnest.splitting.module_outputs import ModuleOutput, module_outputs

WIDTH = 32


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.head, self.act = nn.Linear(16, 4), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.act(self.second(self.first(x))).mean((2, 3)))
        return result


class Skips(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        kept = self.first(x)
        result: Tensor = self.third(self.second(kept)) + kept
        return result


def of(model: nn.Module, sample: Tensor) -> list[ModuleOutput | None]:
    """What crosses the ends of a model's units."""
    return list(module_outputs(capture(model, (sample,))))


@pytest.fixture(autouse=True)
def _on_meta() -> object:
    with torch.device("meta"):
        yield


def test_behind_a_block_its_output_crosses_and_within_it_none_of_a_module() -> None:
    captured = capture(gpt(vocab=97, layers=3, width=WIDTH, heads=4, context=8), (torch.zeros(2, 8, dtype=torch.long),))
    outputs = module_outputs(captured)

    blocks = [one for one in outputs if one is not None and one.name.startswith("blocks.")]
    assert blocks == [ModuleOutput(f"blocks.{index}", WIDTH, -1) for index in range(3)]
    middles = [index for index, unit in enumerate(captured.units) if unit.name.endswith("attention.out")]
    assert [outputs[index] for index in middles] == [None] * 3
    assert outputs[-1] is None


def test_the_features_of_images_are_their_channels() -> None:
    found = [one for one in of(Images(), torch.zeros(2, 3, 8, 8)) if one is not None]

    assert found == [ModuleOutput("first", 8, 1)]


def test_where_two_tensors_cross_there_is_no_output_of_one_module() -> None:
    first, second, last = of(Skips(), torch.zeros(2, WIDTH))

    assert first == ModuleOutput("first", WIDTH, -1)
    assert second is None
    assert last is None
