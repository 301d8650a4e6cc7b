"""Bottlenecks: a cut in one costs the bytes of its few features, and the model with them is trained like any other."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ravnest.errors import InvalidInput
from ravnest.splitting import build_model, capture, initial_weights, record
from ravnest.splitting.bottlenecks import Bottleneck, insert_bottlenecks
from tests.unit.ravnest.splitting.models import CASES, CNN, GPT, build, run_eager, run_stages, without_buffers

WIDTH, BLOCKS = 16, 3
NARROW = {"after": "blocks.[01]", "features": WIDTH, "width": 2, "dim": -1}


def narrowed(*bottlenecks: dict[str, Any], make: Callable[[], nn.Module] = lambda: GPT(BLOCKS, WIDTH)) -> nn.Module:
    """The model as a job with these bottlenecks makes it."""
    config = {"factory": "models:make", "bottlenecks": list(bottlenecks)}
    return build_model(config, torch.get_default_device(), resolve=lambda name: make)


def test_a_cut_in_a_bottleneck_sends_its_few_features_and_stages_do_what_the_model_does() -> None:
    case = CASES["gpt"]
    with torch.device("meta"):
        model = capture(narrowed(NARROW), case.args)
    whole, few = (4 * features * case.args[0].shape[1] for features in (WIDTH, NARROW["width"]))
    boundaries = [unit.boundary_bytes for unit in model.units]
    assert boundaries.count(few) == 2
    assert min(boundaries[:-1]) == few < whole
    cuts = [0, *(place + 1 for place, sent in enumerate(boundaries) if sent == few), len(boundaries)]

    def make() -> nn.Module:
        return narrowed(NARROW)

    stages = build(model, type(case)(make, case.args), cuts)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        eager = make().eval()
    expected = run_eager(eager, case.args, {}, False, set())
    found = run_stages(stages, case.args, False)
    assert torch.equal(without_buffers(found).outputs[0], expected.outputs[0])
    assert {name for stage in stages for name, _ in stage.named_parameters()} >= {
        f"blocks.{block}.bottleneck.{map_}.weight" for block in (0, 1) for map_ in ("down", "up")
    }


def test_it_begins_as_a_projection_and_its_weights_can_be_made_one_by_one() -> None:
    def make() -> nn.Module:
        return narrowed(NARROW)

    recorded = record(make, 0)
    assert recorded.make(0).keys() == initial_weights(make, 0).keys()
    names = [f"blocks.1.bottleneck.{name}.weight" for name in ("down", "up")]
    down, up = (recorded.only([name]).make(0)[name] for name in names)
    torch.testing.assert_close(down @ down.T, torch.eye(NARROW["width"]))
    assert torch.equal(up, down.T)


def test_those_of_one_size_begin_on_one_subspace_also_where_a_stage_makes_its_weights_alone() -> None:
    def make() -> nn.Module:
        return narrowed({**NARROW, "after": "blocks.[012]"}, {**NARROW, "after": "norm", "width": 3})

    recorded = record(make, 0)
    for weights in (initial_weights(make, 0), recorded.make(0)):
        first, *others = (weights[f"blocks.{block}.bottleneck.down.weight"] for block in range(BLOCKS))
        assert all(torch.equal(first, other) for other in others)
        assert weights["norm.bottleneck.down.weight"].shape == (3, WIDTH)
    last = "blocks.2.bottleneck.down.weight"
    assert torch.equal(recorded.only([last]).make(0)[last], recorded.make(0)[last])


def test_channels_of_images_and_the_last_child_of_a_sequential_and_the_first_of_a_tuple() -> None:
    images = torch.randn(2, 1, 6, 6)
    model = narrowed({"after": "stem", "features": 6, "width": 1, "dim": 1}, make=CNN).eval()
    stem = model.get_submodule("stem")(images)
    assert stem.shape == (2, 6, 6, 6)
    centred = (stem - stem[:, :, :1, :1]).permute(0, 2, 3, 1).reshape(-1, 6)
    assert torch.linalg.matrix_rank(centred, tol=1e-4) == 1

    class Layer(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, str]:
            return x, "kept"

    layers = nn.Sequential(Layer())
    insert_bottlenecks(layers, [{"after": "0", "features": 4, "width": 1, "dim": -1}])
    output, kept = layers(torch.randn(5, 4))
    assert kept == "kept"
    assert torch.linalg.matrix_rank(output.detach(), tol=1e-4) == 1


def _of(**changes: Any) -> dict[str, Any]:
    return {**NARROW, **changes}


@pytest.mark.parametrize(
    ("bottlenecks", "message"),
    [
        ([_of(after="block.0")], r"model\.bottlenecks\[0\]\.after: 'block\.0' is the name of no module"),
        ([NARROW, _of(after="*")], r"model\.bottlenecks\[1\]\.after: 'blocks' is a ModuleList, which has no output"),
        ([NARROW, _of(after="blocks.1")], r"model\.bottlenecks\[1\]\.after: 'blocks\.1' has a bottleneck already"),
    ],
)
def test_names_that_fit_nothing_are_refused(bottlenecks: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        narrowed(*bottlenecks)


@pytest.mark.parametrize("wrong", [_of(features=8), _of(dim=1), _of(dim=7)])
def test_features_that_the_output_has_not_are_told_at_its_first_forward(wrong: dict[str, Any]) -> None:
    model = narrowed(wrong)
    with pytest.raises(InvalidInput, match=r"model\.bottlenecks: the output of shape \(4, 8, 16\) has not"):
        model(*CASES["gpt"].args)


def test_an_output_that_is_no_tensor_is_refused() -> None:
    class Layer(nn.Module):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"x": x}

    model = nn.Sequential(Layer())
    insert_bottlenecks(model, [{"after": "0", "features": 4, "width": 1, "dim": -1}])
    with pytest.raises(InvalidInput, match="Layer returns dict, and a bottleneck needs a tensor"):
        model(torch.ones(1, 4))


@pytest.mark.parametrize("after", ["1", "2"])
def test_in_a_model_of_16_bits_it_has_16_bits_and_its_weights_can_be_made_one_by_one(after: str) -> None:
    def make() -> nn.Module:
        layers = nn.Sequential(nn.Embedding(7, 8), nn.Linear(8, 8), nn.Tanh()).bfloat16()
        return narrowed({**NARROW, "after": after, "features": 8}, make=lambda: layers)

    model = make()
    assert model(torch.tensor([[1, 2]])).dtype == torch.bfloat16
    recorded, name = record(make, 0), f"{after}.bottleneck.down.weight"
    alone, whole = (weights.make(0)[name] for weights in (recorded.only([name]), recorded))
    assert alone.dtype == torch.bfloat16
    assert torch.equal(alone, whole)


def test_gradients_reach_both_maps() -> None:
    bottleneck = Bottleneck(4, 2, -1)
    bottleneck(torch.randn(3, 4)).square().sum().backward()
    for parameter in bottleneck.parameters():
        assert parameter.grad is not None
        assert float(parameter.grad.abs().sum()) > 0
