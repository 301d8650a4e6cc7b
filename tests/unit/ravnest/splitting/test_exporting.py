"""Models are exported in both modes, in the first way that works, and stay as they were."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from ravnest.errors import ModelNotSplittable
from ravnest.splitting import capture
from ravnest.splitting.exporting import refusal, ways_to_export
from tests.unit.ravnest.splitting.models import (
    CASES,
    CNN,
    Case,
    FixedBatch,
    build,
    captured,
    captured_case,
    run_eager,
    run_stages,
    seeded,
)


def test_batch_of_one_sample_is_enough() -> None:
    model = captured(Case(CNN, (torch.ones(1, 1, 6, 6),)))
    assert model.batch_is_dynamic
    assert model.units == captured(Case(CNN, (torch.ones(2, 1, 6, 6),))).units


def test_models_that_cannot_run_on_meta_are_captured_all_the_same() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(3, 3)
            self.second = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.first(x) * torch.tensor([1.0, 2.0, 3.0]) + torch.arange(3))

    case = Case(Mixed, (torch.ones(4, 3),))
    model = captured(case)
    assert model.batch_is_dynamic
    run_stages(build(model, case, [0, 1, 2]), case.args, True).assert_equal(
        run_eager(seeded(case), case.args, {}, True, set())
    )


def test_models_that_take_another_path_on_meta_are_captured_as_on_a_cpu() -> None:
    class Chooses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(3, 3)
            self.second = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            places = (x > 0).float() if x.device.type == "cpu" else (x > 0).int()
            return self.second(x) * torch.histc(places, bins=3, min=0, max=2)

    case = Case(Chooses, (torch.ones(4, 3),))
    run_stages(build(captured(case), case, [0, 1, 2]), case.args, True).assert_equal(
        run_eager(seeded(case), case.args, {}, True, set())
    )


def test_a_model_bound_to_its_batch_size_says_so() -> None:
    assert not captured(Case(FixedBatch, (torch.ones(4, 6),))).batch_is_dynamic
    assert captured_case("gpt").batch_is_dynamic


def test_capture_leaves_the_model_and_its_modes_alone() -> None:
    model = CNN().eval()
    model.blocks[0].train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    capture(model, CASES["cnn"].args)
    assert not model.training
    assert model.blocks[0].conv1.training
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


class Shortened(nn.Linear):
    """It holds the norms of its rows below 1, as Keras's max_norm does."""

    def forward(self, x: Tensor) -> Tensor:
        self.weight.data = torch.renorm(self.weight.data, 2, 0, 1.0)
        return super().forward(x)


def test_a_forward_that_writes_to_data_is_told_what_to_do_instead() -> None:
    with pytest.raises(ModelNotSplittable, match=r"writes to the \.data of a tensor; .*parametrize"):
        capture(nn.Sequential(nn.Linear(4, 4), Shortened(4, 4)), (torch.ones(3, 4),))


def test_a_model_of_transformers_with_its_cache_is_told_to_leave_it_out() -> None:
    sizes: dict[str, Any] = {"vocab_size": 11, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 1, "num_key_value_heads": 1}
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**sizes))
    way = next(ways_to_export(model, (torch.zeros(2, 4, dtype=torch.long),), {}))
    with pytest.raises(RuntimeError, match="DynamicCache") as caught:
        way.export()
    assert "set config.use_cache = False before the factory returns it" in str(refusal(model, caught.value))
    assert "use_cache" not in str(refusal(model, ValueError("no way")))
