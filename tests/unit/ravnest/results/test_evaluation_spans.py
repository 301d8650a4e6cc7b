import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import TensorDataset

from ravnest.errors import InvalidInput
from ravnest.job.initial_weights import make_weights
from ravnest.job.materials import load_data, make_model, search_dirs
from ravnest.results.evaluation import SpanEvaluation
from ravnest.stage.device import HostDevice
from ravnest.training.losses import Loss, build_loss, build_metrics
from ravnest.training.named_measures import Measure
from tests.support.jobs import measured
from tests.support.local import JOB_FILE, captured_job, tiny_job


def evaluation(loss: Loss | None = None, dataset: TensorDataset | None = None) -> SpanEvaluation:
    job = tiny_job()
    return SpanEvaluation(
        make_weights(job, JOB_FILE),
        load_data(job, JOB_FILE).held_out if dataset is None else dataset,
        build_loss("cross_entropy") if loss is None else loss,
        build_metrics(["accuracy"]),
        device=HostDevice(),
        device_name="cpu",
    )


def test_groups_of_batches_add_up_to_what_the_unmodified_model_gives() -> None:
    job, captured = tiny_job(), captured_job(tiny_job())
    count = len(captured.units)
    programs = [captured.span(0, 2), captured.span(2, 5), captured.span(5, count)]
    sums, calls = evaluation(), []
    sums.add(programs, [range(4), range(4, 8)], lambda: calls.append(1))
    sums.add(programs, [range(8, 10)], lambda: calls.append(1))
    assert len(calls) == 9
    model = make_model(job, JOB_FILE)
    model.load_state_dict(make_weights(job, JOB_FILE), strict=True)
    inputs, targets = load_data(job, JOB_FILE).held_out.dataset.tensors
    with torch.no_grad():
        output = model.eval()(inputs)
    expected = functional.cross_entropy(output.flatten(0, -2), targets.flatten()).item()
    assert sums.loss == pytest.approx(expected, rel=1e-6)
    assert sums.metrics["accuracy"] == pytest.approx((output.argmax(-1) == targets).float().mean().item())


def test_a_loss_that_raises_is_told_as_the_users() -> None:
    def measure(output: Tensor, target: Tensor) -> Measure:
        raise ValueError("mine")

    captured = captured_job(tiny_job())
    sums = evaluation(Loss("my:loss", lambda output, target: output.mean(), measure))
    with pytest.raises(InvalidInput, match=r"loss: 'my:loss', on an output of \(4, 8, 11\), raised ValueError: mine"):
        sums.add([captured.span(0, len(captured.units))], [range(4)], lambda: None)


def test_a_loss_with_parameters_measures_with_the_weights_of_the_run() -> None:
    job = tiny_job(
        model={"factory": "measured:embedder"},
        data={"factory": "tiny:images"},
        loss={"factory": "measured:ArcFace"},
    )
    captured, held_out = captured_job(job), load_data(job, JOB_FILE).held_out
    torch.manual_seed(4)
    weights = {name: torch.randn_like(tensor) for name, tensor in make_weights(job, JOB_FILE).items()}
    loss = build_loss(job.loss, search_dirs(JOB_FILE))
    sums = SpanEvaluation(weights, held_out, loss, (), device=HostDevice(), device_name="cpu")
    count = len(captured.units)
    sums.add([captured.span(0, 2), captured.span(2, count)], [range(10)], lambda: None)
    model, module = make_model(job, JOB_FILE), measured.ArcFace()
    model.load_state_dict({name: tensor for name, tensor in weights.items() if not name.startswith("loss.")})
    module.load_state_dict({name[5:]: tensor for name, tensor in weights.items() if name.startswith("loss.")})
    images, labels = held_out.dataset.tensors
    expected = float(module.eval()(model.eval()(images), labels).detach())
    assert sums.loss == pytest.approx(expected, rel=1e-5)
