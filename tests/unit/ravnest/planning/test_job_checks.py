import pytest
import torch
from torch import nn

from ravnest.errors import InvalidInput
from ravnest.planning.job_checks import check_optimizer, check_sample, run_once
from tests.support.local import tiny_job


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


def test_groups_let_an_optimizer_train_what_it_can_and_must_match_something():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    muon = {"name": "muon", "lr": 0.01, "groups": [{"match": "*.bias", "name": "adamw"}]}
    check_optimizer(tiny_job(optimizer=muon), "job.yaml", model)
    with pytest.raises(InvalidInput, match=r"^job\.yaml: optimizer\.groups\[0\]\.match: 'heads\.\*' matches no"):
        check_optimizer(tiny_job(optimizer={"groups": [{"match": "heads.*", "lr": 1.0}]}), "job.yaml", model)
