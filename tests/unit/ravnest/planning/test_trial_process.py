"""What a run would meet in a stage is met before the plan is given out, and told by stage and cause."""

import json
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import save_file

from ravnest.errors import InvalidInput
from ravnest.job.config import Job
from ravnest.job.initial_weights import make_weights
from ravnest.job.materials import capture_job, load_data
from ravnest.planning.mapped_weights import MappedWeights
from ravnest.planning.trial import try_plan
from ravnest.planning.trial_process import TRIAL, WEIGHTS, StoredWeights, main
from ravnest.stage.compute import StageCompute
from ravnest.training.fingerprint import fingerprint
from tests.support.local import job_in, plan_with

CODE = """
from types import SimpleNamespace
import numpy
import torch
from torch import nn
from torch.utils.data import TensorDataset

class Layers(nn.Module):
    def __init__(self, frozen=False):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(4, 4) for _ in range(3))
        self.norm = nn.BatchNorm1d(4)
        if frozen:
            self.b.requires_grad_(False)
            self.norm.requires_grad_(False)
    def forward(self, x):
        x = torch.relu(self.a(x))
        return self.c(torch.fft.ifft(torch.fft.fft(self.norm(self.b(x)))).real)

class Pooled(Layers):
    def forward(self, x):
        return self.c(torch.relu(self.b(torch.relu(self.a(x)))).mean(1))

def flat(held_out=19, width=4):
    def part(n, width):
        return TensorDataset(torch.randn(n, width), torch.zeros(n, dtype=torch.long))
    return SimpleNamespace(train=part(32, 4), held_out=part(held_out, width))

def unknown():
    x = torch.as_tensor(numpy.random.default_rng().normal(size=(40, 4)), dtype=torch.float32)
    labels = torch.zeros(40, dtype=torch.long)
    return SimpleNamespace(train=TensorDataset(x[:32], labels[:32]), held_out=TensorDataset(x[32:], labels[32:]))

def long(length):
    def part(n, length):
        return TensorDataset(torch.randn(n, length, 4), torch.zeros(n, dtype=torch.long))
    return SimpleNamespace(train=part(32, 5), held_out=part(8, length))

def picky(output, target):
    if len(target) == 3:
        raise ValueError("three are no batch")
    return torch.nn.functional.cross_entropy(output, target)
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Job]:
    monkeypatch.delitem(sys.modules, "code_for_trial", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "code_for_trial.py").write_text(CODE)

    def made(**changes: object) -> Job:
        given: dict[str, object] = {
            "model": {"factory": "code_for_trial:Layers"},
            "data": {"factory": "code_for_trial:flat"},
            "loss": "cross_entropy",
            "micro_batch": 4,
            "optimizer": {"name": "adamw", "lr": 0.01},
            "stop": {"samples": 96},
        }
        return job_in(tmp_path, **{**given, **changes})

    return made


def tried(job: Job, *, in_files: bool = False) -> None:
    data = load_data(job, job.file)
    captured = capture_job(job, job.file, data)
    plan = replace(plan_with(job, captured, [[1, 2], [1]]), data=fingerprint(data.train, data.held_out))
    weights, mapped = make_weights(job, job.file), MappedWeights(least_bytes=64)
    if in_files:
        weights = {name: mapped.put(name, tensor) for name, tensor in weights.items()}
        assert {"a.weight", "c.weight"} <= mapped.places.keys()
    try_plan(plan, job, job.file, captured, weights, 0.0, places=mapped.places)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"wire": {"activations": "bfloat16", "gradients": "float16"}},
        {"activation_checkpointing": "always"},
        {"model": {"factory": "code_for_trial:Layers", "args": {"frozen": True}}},
        {"data": {"factory": "code_for_trial:flat", "args": {"held_out": 0}}},
    ],
    ids=["plain", "short", "recomputed", "a stage that is frozen", "nothing held out"],
)
def test_a_plan_whose_stages_work_passes(job: Callable[..., Job], changes: dict[str, object]) -> None:
    tried(job(**changes), in_files="model" in changes)


def test_tensors_that_every_process_makes_anew_are_refused(job: Callable[..., Job]) -> None:
    said = r"^[^:]*job\.yaml: data\.factory: its data are others in each process that calls it \(32 \+ 8 samples, "
    with pytest.raises(InvalidInput, match=said) as caught:
        tried(job(data={"factory": "code_for_trial:unknown"}))
    assert "seed" in str(caught.value.hint)


def test_held_out_samples_of_another_shape_are_refused_with_both_shapes(job: Callable[..., Job]) -> None:
    with pytest.raises(InvalidInput, match=r"job\.yaml: data\.factory: .*held-out.*\(16, 6\).*\(None, 4\)") as caught:
        tried(job(data={"factory": "code_for_trial:flat", "args": {"width": 6}}))
    assert "plan" not in str(caught.value.hint)


def test_held_out_samples_of_another_length_are_refused_even_where_operations_would_take_them(
    job: Callable[..., Job],
) -> None:
    given = {"model": {"factory": "code_for_trial:Pooled"}}
    tried(job(**given, data={"factory": "code_for_trial:long", "args": {"length": 5}}))
    with pytest.raises(InvalidInput, match=r"\(8, 7, 4\).*\(None, 5, 4\)"):
        tried(job(**given, data={"factory": "code_for_trial:long", "args": {"length": 7}}))


def test_the_short_last_batch_is_tried_too(job: Callable[..., Job]) -> None:
    with pytest.raises(
        InvalidInput, match=r"stage c0\.s2 .* cannot evaluate batch 1 .* ValueError: three are no batch"
    ):
        tried(job(loss={"function": "code_for_trial:picky"}))


@pytest.mark.parametrize(
    ("in_files", "held_out", "evaluations", "forwards"),
    # Forwards of one stage at a time: 3 and 2 before backwards, and 2 and 1 before these to have what the stages send.
    [(False, 19, 2, 8), (True, 19, 2, 5), (False, 32, 2, 8), (True, 32, 1, 5)],
    ids=["one stage at a time", "in files", "equal batches", "equal batches in files"],
)
def test_what_lies_in_files_is_run_no_more_often_than_needed(
    job: Callable[..., Job],
    monkeypatch: pytest.MonkeyPatch,
    in_files: bool,
    held_out: int,
    evaluations: int,
    forwards: int,
) -> None:
    """Of pipelines of three and of two stages, here with the code of the fresh process."""
    calls: list[str] = []
    for name in ("forward", "backward", "evaluate"):
        method = getattr(StageCompute, name)

        def counted(self: StageCompute, *args: Any, method: Any = method, name: str = name, **kwargs: Any) -> Any:
            calls.append(name)
            return method(self, *args, **kwargs)

        monkeypatch.setattr(StageCompute, name, counted)
    monkeypatch.setattr("ravnest.planning.trial.in_fresh_process", lambda folder, deadline_s: main(folder))
    tried(job(data={"factory": "code_for_trial:flat", "args": {"held_out": held_out}}), in_files=in_files)
    assert Counter(calls) == {"evaluate": 5 * evaluations, "forward": forwards, "backward": 5}


def test_what_was_read_of_mapped_weights_goes_back_and_comes_again(tmp_path: Path) -> None:
    mapped = MappedWeights()
    large = mapped.put("large", torch.arange(8 << 20, dtype=torch.float32))
    place = [*mapped.places["large"], list(large.shape), "float32"]
    (tmp_path / TRIAL).write_text(json.dumps({"places": {"large": place}}))
    save_file({}, tmp_path / WEIGHTS)
    weights = StoredWeights(tmp_path)
    tensor = weights["large"]
    assert weights["large"].data_ptr() == tensor.data_ptr()
    before = psutil.Process().memory_info().rss
    assert torch.equal(tensor, large)
    read = psutil.Process().memory_info().rss
    weights.give_back()
    assert psutil.Process().memory_info().rss < read - large.nbytes // 2
    assert read > before
    assert torch.equal(tensor, large)


def test_an_operator_that_a_stage_does_not_know_is_refused(
    job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = job()
    captured = capture_job(given, given.file, load_data(given, given.file))
    for operation in captured.train.operations:
        if operation.target.startswith("aten.fft"):
            object.__setattr__(operation, "target", "nowhere.fft.default")
    monkeypatch.setattr("ravnest.splitting.capturing.registering_modules", lambda targets: ())
    plan = plan_with(given, captured, [[1, 2]])
    with pytest.raises(
        InvalidInput, match=r"stage c0\.s\d .* cannot be made: .*'nowhere\.fft\.default' is not registered"
    ):
        try_plan(plan, given, given.file, captured, make_weights(given, given.file), 0.0)
