"""A plan's stages are tried in a process of their own, which knows no more than a stage does."""

from pathlib import Path

import pytest

from ravnest.errors import InvalidInput
from ravnest.job.initial_weights import make_weights
from ravnest.job.materials import capture_job, load_data
from ravnest.planning.trial import in_fresh_process, try_plan
from tests.support.local import job_in, plan_with

pytestmark = pytest.mark.timeout(120)

CODE = """
from types import SimpleNamespace
import torch
from torch import nn
from torch.utils.data import TensorDataset
import operator_for_trial

class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(4, 4) for _ in range(3))
    def forward(self, x):
        return self.c(torch.ops.trial.doubled(self.b(torch.relu(self.a(x)))))
"""
OPERATOR = """
import torch

@torch.library.custom_op("trial::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2

doubled.register_fake(torch.empty_like)
doubled.register_autograd(lambda context, gradient: gradient * 2)
"""
DATA = """
from types import SimpleNamespace
import torch
from torch.utils.data import TensorDataset

def flat():
    part = TensorDataset(torch.randn(24, 4), torch.zeros(24, dtype=torch.long))
    return SimpleNamespace(train=part, held_out=part)
"""


def test_a_stage_imports_the_operators_it_needs_and_one_that_cannot_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("model", CODE), ("operator", OPERATOR), ("data", DATA)):
        (tmp_path / f"{name}_for_trial.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    job = job_in(
        tmp_path,
        model={"factory": "model_for_trial:Layers"},
        data={"factory": "data_for_trial:flat"},
        micro_batch=4,
        optimizer={"name": "sgd", "lr": 0.1},
        stop={"samples": 96},
    )
    captured = capture_job(job, job.file, load_data(job, job.file))
    plan = plan_with(job, captured, [[1, 2]])
    weights = make_weights(job, job.file)
    try_plan(plan, job, job.file, captured, weights, 0.0)
    (tmp_path / "operator_for_trial.py").write_text("")
    with pytest.raises(
        InvalidInput, match=r"job\.yaml: model: stage c0\.s\d .*'trial\.doubled\.default' is not registered"
    ):
        try_plan(plan, job, job.file, captured, weights, 0.0)


def test_a_process_that_dies_or_hangs_is_told(tmp_path: Path) -> None:
    (tmp_path / "trial.json").write_text("[]")
    with pytest.raises(InvalidInput, match=r"the process that tried the stages ended with 1: .*TypeError"):
        in_fresh_process(tmp_path, 100.0)
    with pytest.raises(InvalidInput, match="within 0 s"):
        in_fresh_process(tmp_path, 0.01)
