import pytest
import torch

from experiments.pipeline.tasks import Digits
from experiments.wire.bottlenecks import CUTS, NARROWINGS, narrowed
from experiments.wire.cuts import as_form, cut


def test_what_crosses_has_so_many_times_fewer_features_and_the_model_is_as_it_was_without_any():
    model, images = Digits().model(0), torch.randn(2, 1, 8, 8)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert narrowed(model, 1, CUTS["digits"], images, seed=0) == []
    narrow = narrowed(model, 8, CUTS["digits"], images, seed=0)
    assert [(module.in_features, module.out_features) for module in narrow] == [(24, 3), (48, 6), (48, 6)]
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in before.items())


def test_one_seed_gives_one_bottleneck_and_what_crosses_it_takes_the_form():
    first, second = (Digits().model(0) for _ in range(2))
    images = torch.randn(2, 1, 8, 8)
    narrow = narrowed(first, 4, CUTS["digits"], images, seed=1)
    narrowed(second, 4, CUTS["digits"], images, seed=1)
    first.eval()
    second.eval()
    assert torch.equal(first(images), second(images))
    with cut(narrow, as_form("int8")):
        assert not torch.equal(first(images), second(images))


@pytest.mark.parametrize(("form", "ratio"), [("float32", 1), ("a quarter", 4), ("an eighth, int8", 31.5)])
def test_ratios_of_bytes(form, ratio):
    assert NARROWINGS[form].ratio == pytest.approx(ratio, rel=0.01)
