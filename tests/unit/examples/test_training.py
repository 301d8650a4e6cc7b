"""Each example trains, as it is but for its size: the loss falls, and the weights load into the unmodified model."""

import dataclasses
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from ravnest.driver.in_process import LocalResult, LocalRun
from ravnest.driver.preparation import StageState
from ravnest.driver.session import run_control
from ravnest.driver.stage_setups import stage_setups
from ravnest.job.config import Job, job_from_mapping, load_job
from ravnest.job.initial_weights import make_weights
from ravnest.job.materials import capture_job, load_data, make_model, search_dirs
from ravnest.training.batches import fetch
from tests.support.local import plan_with

EXAMPLES = Path(__file__).parents[3] / "examples"
FACTORY_MODULES = ("data", "model", "sample")


@pytest.fixture(autouse=True)
def _factories_of_one_example(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each example's folder has modules of these names; a process is meant to see one example only."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = {name: sys.modules.pop(name, None) for name in FACTORY_MODULES}
    yield
    for name, module in before.items():
        sys.modules.pop(name, None)
        if module is not None:
            sys.modules[name] = module


def trained(name: str, parts: tuple[int, ...], **changes: Any) -> tuple[Job, str, LocalResult]:
    """The example's own job, with these keys replaced, run in clusters of so many stages."""
    torch.set_num_threads(1)
    job_file = str(EXAMPLES / name / "job.yaml")
    job = job_from_mapping({**load_job(job_file).model_dump(mode="json"), **changes})
    data = load_data(job, job_file)
    captured = capture_job(job, job_file, data)
    count = len(captured.units)
    plan = plan_with(job, captured, [[count * i // n for i in range(1, n)] for n in parts])
    plan = dataclasses.replace(plan, job_file=job_file)
    threads = {node.name: 1 for node in plan.fleet.nodes}
    setups = stage_setups(
        plan,
        job,
        captured,
        search_dirs=search_dirs(job_file),
        threads=threads,
        total_samples=job.stop.samples,
        token=b"t" * 16,
    )
    weights = make_weights(job, job_file)
    control = run_control(plan, job, setups, len(data.held_out), job.stop.samples, None)
    states = {stage: StageState(weights, {}, 0) for stage in setups}
    return job, job_file, LocalRun(setups, states, control).run()


def check_learned(job: Job, job_file: str, result: LocalResult, at_most: float) -> None:
    """Every cluster's loss fell; the saved weights, in the model as its author wrote it, have the held-out loss that
    was reported, and it is `at_most` so much of the untrained model's."""
    assert len(result.losses) == 2
    for losses in result.losses.values():
        assert fmean(losses[-6:]) < fmean(losses[:6])
    data = load_data(job, job_file)
    start, end = make_model(job, job_file), make_model(job, job_file)
    persistent = start.state_dict().keys()
    weights = make_weights(job, job_file)
    start.load_state_dict({name: weights[name] for name in persistent}, strict=True)
    end.load_state_dict(result.checkpoints[-1], strict=True)
    (evaluated,) = result.evaluations
    trained_loss = held_out_loss(end, data)
    assert trained_loss == pytest.approx(evaluated.loss[0] / evaluated.loss[1], rel=1e-4)
    assert trained_loss < at_most * held_out_loss(start, data)


def held_out_loss(model: nn.Module, data: Any) -> float:
    inputs, target = fetch(data.held_out, range(len(data.held_out)))
    with torch.no_grad():
        output = model.eval()(*inputs)
    return functional.cross_entropy(output.flatten(0, -2), target.flatten()).item()


def test_digits_trains() -> None:
    job, job_file, result = trained(
        "digits",
        parts=(3, 2),
        optimizer={"name": "adamw", "lr": 3e-3, "schedule": {"name": "cosine", "warmup_updates": 2}},
        average_every=320,
        stop={"samples": 1920},
    )
    check_learned(job, job_file, result, at_most=0.7)
    (evaluated,) = result.evaluations
    hits, count = evaluated.metrics[0]
    assert count == 360
    assert hits / count > 0.5  # a guess is right in one of ten


def test_home_trains() -> None:
    model = load_job(EXAMPLES / "home" / "job.yaml").model.model_dump(mode="json", exclude_none=True)
    job, job_file, result = trained(
        "home",
        parts=(3, 2),
        model={**model, "args": {**model["args"], "layers": 2, "width": 32}},
        update_every=2,
        optimizer={"name": "nadam", "lr": 1e-2, "clip_norm": 1.0},
        average_every=80,
        stop={"samples": 240},
    )
    check_learned(job, job_file, result, at_most=0.8)


@pytest.mark.skipif(find_spec("transformers") is None, reason="the extra ravnest[transformers] is not installed")
def test_llama_trains() -> None:
    model = load_job(EXAMPLES / "llama" / "job.yaml").model.model_dump(mode="json", exclude_none=True)
    job, job_file, result = trained(
        "llama",
        parts=(3, 2),
        model={"huggingface": {**model["huggingface"], "num_hidden_layers": 2}},
        update_every=2,
        optimizer={"name": "adamw", "lr": 3e-3, "clip_norm": 1.0, "schedule": {"name": "cosine", "warmup_updates": 2}},
        average_every=80,
        stop={"samples": 240},
    )
    check_learned(job, job_file, result, at_most=0.8)
    transformers = pytest.importorskip("transformers")
    configuration = transformers.AutoConfig.for_model(**job.model.huggingface)
    theirs = transformers.AutoModelForCausalLM.from_config(configuration)
    theirs.load_state_dict(result.checkpoints[-1], strict=True)
