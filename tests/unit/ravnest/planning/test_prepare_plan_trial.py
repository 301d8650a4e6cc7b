import sys

import pytest
import torch
from torch import nn

from ravnest.errors import InvalidInput
from ravnest.planning.prepare_plan import check_measures, check_optimizer, check_room, check_sample, run_once
from tests.support.local import tiny_job

LOSSES = """
def raising():
    return lambda output, target: output.nope
def vector():
    return lambda output, target: output.sum(1)
def detached():
    return lambda output, target: output.detach().sum()
def number(): return 3
def broken(): return 1 / 0
"""


class Raising(nn.Module):
    def forward(self, x):
        raise ValueError("mine")


def test_a_forward_that_raises_is_told_with_its_line():
    said = rf"^job\.yaml: model: the forward of Raising, .*\(4, 2\) float32.* raised ValueError: mine \({__file__}:\d+;"
    with pytest.raises(InvalidInput, match=said):
        run_once(Raising(), (torch.ones(4, 2),), {}, "job.yaml")
    with pytest.raises(InvalidInput, match=r"^job\.yaml: model: Raising\.forward does not take the inputs of a sample"):
        run_once(Raising(), (torch.ones(4, 2), torch.ones(4)), {}, "job.yaml")


def test_inputs_by_keyword_are_given_by_keyword():
    class Keyed(nn.Module):
        def forward(self, *, x, scale):
            return x * scale

    output = run_once(Keyed(), (), {"scale": torch.tensor([3.0]), "x": torch.ones(2, 1)}, "job.yaml")
    assert output.tolist() == [[3.0], [3.0]]
    with pytest.raises(InvalidInput, match=r"does not take the inputs of a sample \(x, size\)"):
        run_once(Keyed(), (), {"x": torch.ones(2), "size": torch.ones(1)}, "job.yaml")


def test_a_model_is_left_as_it_was():
    model = nn.BatchNorm1d(2).eval()
    output = run_once(model, (torch.randn(4, 2),), {}, "job.yaml")
    assert output is not None
    assert output.requires_grad
    assert (int(model.num_batches_tracked), model.training) == (0, False)


@pytest.mark.parametrize("key", ["loss", "metrics"])
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("raising", "raised AttributeError: 'Tensor' object has no attribute 'nope'"),
        ("vector", "expected one number in a tensor"),
        ("number", "returned int, expected a callable"),
        ("broken", "raised ZeroDivisionError"),
        ("absent", "has no 'absent'"),
    ],
)
def test_a_loss_or_metric_that_cannot_work_is_refused(tmp_path, monkeypatch, key, name, said):
    with pytest.raises(InvalidInput) as caught:
        measured(tmp_path, monkeypatch, key, name)
    assert str(caught.value).startswith(f"{tmp_path / 'job.yaml'}: {key}: ")
    assert said in str(caught.value)


def test_a_loss_without_a_gradient_is_refused(tmp_path, monkeypatch):
    with pytest.raises(InvalidInput, match="it has no gradient"):
        measured(tmp_path, monkeypatch, "loss", "detached")
    measured(tmp_path, monkeypatch, "metrics", "detached")


def measured(folder, monkeypatch, key, name):
    monkeypatch.delitem(sys.modules, "losses_for_rehearsal", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (folder / "losses_for_rehearsal.py").write_text(LOSSES)
    factory = {"factory": f"losses_for_rehearsal:{name}"}
    job = tiny_job(**{key: factory if key == "loss" else [factory]})
    output = torch.randn(4, 3, requires_grad=True)
    check_measures(job, folder / "job.yaml", output, torch.zeros(4, dtype=torch.int64))


def test_a_sample_that_is_not_there_is_refused_before_training(tmp_path):
    with pytest.raises(InvalidInput, match=r"sample\.factory: no module 'nowhere_at_all'"):
        check_sample(tiny_job(sample={"factory": "nowhere_at_all:f"}), tmp_path / "job.yaml")


def test_an_optimizer_that_cannot_train_a_parameter_is_told_with_its_name():
    muon, matrices = tiny_job(optimizer={"name": "muon", "lr": 0.01}), nn.Linear(3, 3, bias=False)
    check_optimizer(muon, "job.yaml", matrices)
    model = nn.Sequential(matrices, nn.Linear(3, 3))
    with pytest.raises(InvalidInput, match=r"^job\.yaml: optimizer: cannot train '1\.bias': .*Muon only supports 2D"):
        check_optimizer(muon, "job.yaml", model)
    model[1].bias.requires_grad_(False)
    check_optimizer(muon, "job.yaml", model)


def test_a_model_that_memory_cannot_hold_is_refused_before_it_is_built():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(100, 99), nn.BatchNorm1d(99))
    model[0].weight.requires_grad_(False)
    trained = 4 * (99 + 2 * 99)
    weights = trained + 4 * 9_900 + 4 * 2 * 99 + 8
    needed = 2 * weights + 3 * trained
    check_room("job.yaml", model, needed)
    with pytest.raises(InvalidInput, match=r"^job\.yaml: model: has 41.6 kB of weights; .* 86.7 kB, .* 86.7 kB left"):
        check_room("job.yaml", model, needed - 1)
