import math

import pytest
import torch
from torch.nn import functional

from ravnest.errors import InvalidInput
from ravnest.factories import FactoryConfig, FunctionConfig
from ravnest.training.losses import build_loss, build_metrics, outputs_read
from ravnest.training.named_measures import Measure, MeasureConfig


def randn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def classes(*shape, below):
    return torch.randint(below, shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("leading", [(6,), (3, 5), (2, 3, 4)])
def test_cross_entropy_is_the_mean_over_all_targets(leading):
    output, target = randn(*leading, 7), classes(*leading, below=7)
    loss = build_loss("cross_entropy")
    expected = functional.cross_entropy(output.reshape(-1, 7), target.reshape(-1))
    assert torch.equal(loss.mean(output, target), expected)
    measure = loss.measure(output, target)
    assert measure.count == target.numel()
    assert measure.mean == pytest.approx(float(expected))


def test_mse_is_the_mean_over_all_elements():
    output, target = randn(4, 3), randn(3, 4).T.contiguous()
    loss = build_loss("mse")
    assert torch.equal(loss.mean(output, target), functional.mse_loss(output, target))
    assert loss.measure(output, target) == Measure(pytest.approx(float((output - target).square().sum())), 12)


@pytest.mark.parametrize("name", ["cross_entropy", "mse"])
def test_batches_add_up_to_the_whole_even_when_the_last_is_short(name):
    output = randn(10, 5)
    target = classes(10, below=5) if name == "cross_entropy" else randn(10, 5) * 2
    loss = build_loss(name)
    parts = [loss.measure(*pair) for pair in zip(output.split(4), target.split(4), strict=True)]
    assert sum(parts, Measure(0.0, 0)).mean == pytest.approx(float(loss.mean(output, target)))


def test_ignored_targets_count_nowhere():
    output, target = randn(4, 5), torch.tensor([1, -100, 2, -100])
    whole = build_loss("cross_entropy")
    assert whole.measure(output, target).count == 2
    assert whole.measure(output, target).mean == pytest.approx(float(whole.mean(output, target)))
    (accuracy,) = build_metrics(["accuracy"])
    assert accuracy.measure(output, target).count == 2


def test_accuracy_and_perplexity():
    output = torch.tensor([[[2.0, 0.0], [0.0, 1.0]], [[0.0, 3.0], [1.0, 0.0]]])
    target = torch.tensor([[0, 1], [0, 0]])
    accuracy, perplexity = build_metrics([MeasureConfig(name=n, classes="last") for n in ("accuracy", "perplexity")])
    assert accuracy.finish(accuracy.measure(output, target).mean) == 0.75
    nats = float(functional.cross_entropy(output.reshape(-1, 2), target.reshape(-1)))
    assert perplexity.finish(perplexity.measure(output, target).mean) == pytest.approx(math.exp(nats))
    assert perplexity.finish(1e6) == math.inf


def test_nothing_counted_is_nan():
    assert math.isnan(Measure(0.0, 0).mean)


@pytest.mark.parametrize(
    ("name", "output", "target"),
    [
        ("cross_entropy", (4, 5), torch.zeros(4, 1, dtype=torch.long)),
        ("cross_entropy", (4, 5), torch.zeros(4)),
        ("cross_entropy", (2, 5, 3), torch.zeros(2, 4, dtype=torch.long)),
        ("cross_entropy", (4,), torch.zeros((), dtype=torch.long)),
        ("mse", (4, 1), torch.zeros(4)),
    ],
)
def test_shapes_that_do_not_fit_are_named(name, output, target):
    with pytest.raises(InvalidInput, match=r"^loss: .*\(4|^loss: .*\(2"):
        build_loss(name).mean(randn(*output), target)


def test_unknown_names():
    with pytest.raises(InvalidInput, match="no loss is called 'mean_squared'"):
        build_loss("mean_squared")
    with pytest.raises(InvalidInput, match="no metric is called 'perplexty'; did you mean 'perplexity'"):
        build_metrics(["perplexty"])


def test_factories_are_weighed_by_samples():
    spec = FactoryConfig(factory="torch.nn:L1Loss")
    output, target = randn(10, 2), randn(2, 10).T.contiguous()
    loss, (metric,) = build_loss(spec), build_metrics([spec])
    assert torch.equal(loss.mean(output, target), functional.l1_loss(output, target))
    parts = [loss.measure(*pair) for pair in zip(output.split(4), target.split(4), strict=True)]
    assert [part.count for part in parts] == [4, 4, 2]
    expected = float(functional.l1_loss(output, target))
    assert sum(parts, Measure(0.0, 0)).mean == pytest.approx(expected)
    assert metric.finish(metric.measure(output, target).mean) == pytest.approx(expected)


@pytest.mark.parametrize("build", [build_loss, lambda *given: build_metrics([given[0]], *given[1:])[0]])
def test_a_module_of_the_users_computes_where_the_stage_does(build):
    spec = FactoryConfig(factory="torch.nn:BCEWithLogitsLoss", args={"reduction": "mean"})
    made = []

    class Weighted(torch.nn.BCEWithLogitsLoss):
        def __init__(self, **arguments):
            super().__init__(pos_weight=torch.ones(2), **arguments)
            made.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn, "BCEWithLogitsLoss", Weighted)
        build(spec, (), "meta")
    assert made[0].pos_weight.device.type == "meta"


def test_a_factory_that_gives_no_single_number():
    loss = build_loss(FactoryConfig(factory="torch.nn:L1Loss", args={"reduction": "none"}))
    with pytest.raises(InvalidInput, match=r"'torch.nn:L1Loss' gave \(3, 2\), expected one number"):
        loss.mean(randn(3, 2), randn(3, 2))


def test_a_factory_that_makes_nothing_callable():
    with pytest.raises(InvalidInput, match="returned OrderedDict, expected a callable"):
        build_loss(FactoryConfig(factory="collections:OrderedDict"))


def test_a_function_is_the_loss_itself_and_gets_its_arguments_with_each_call() -> None:
    spec = FunctionConfig(function="torch.nn.functional:cross_entropy", args={"label_smoothing": 0.5})
    output, target = torch.tensor([[2.0, 0.0]]), torch.tensor([0])
    wanted = torch.nn.functional.cross_entropy(output, target, label_smoothing=0.5)
    assert build_loss(spec).mean(output, target) == wanted
    assert build_metrics([spec])[0].measure(output, target).mean == pytest.approx(float(wanted))


def test_a_loss_of_the_users_gets_output_and_target_as_they_are():
    output = {"logits": torch.tensor([[2.0, 0.0]]), "hidden": torch.ones(1, 3)}
    target = {"labels": torch.tensor([0]), "mask": torch.tensor([1.0])}
    loss = build_loss(FunctionConfig(function=f"{__name__}:taking_both"))
    assert loss.mean(output, target) == 3.0 + 1.0
    assert loss.measure(output, target) == Measure(4.0, 1)


def taking_both(output, target):
    return output["hidden"].sum() + target["mask"].sum()


def test_a_module_of_the_users_is_in_training_where_it_trains_and_in_evaluation_where_it_measures():
    loss = build_loss(FactoryConfig(factory=f"{__name__}:Moody"))
    output = target = torch.ones(2)
    assert (loss.mean(output, target), loss.measure(output, target).mean) == (1.0, 0.0)
    assert loss.mean(output, target) == 1.0


class Moody(torch.nn.Module):
    def forward(self, output, target):
        return torch.tensor(float(self.training))


def test_only_named_measures_say_which_outputs_they_read():
    names = ("hidden", "logits")
    assert outputs_read("cross_entropy", ["accuracy"])(names) == ("logits",)
    chosen = outputs_read("cross_entropy", [MeasureConfig(name="accuracy", output="hidden")])
    assert chosen(names) == ("logits", "hidden")
    assert outputs_read("mse", [])(("output",)) == ("output",)
    assert outputs_read("mse", [FactoryConfig(factory="torch.nn:L1Loss")]) is None
    with pytest.raises(InvalidInput, match=r"^metrics: the model returns a, b; accuracy takes one tensor"):
        outputs_read(MeasureConfig(name="mse", output="a"), ["accuracy"])(("a", "b"))
