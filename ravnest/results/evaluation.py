"""Evaluating a run's weights on one machine that need not hold the model.

Decides what is evaluated on what, and how much of the model and of the set is held at once; the batches and the
operations are those of the run's own evaluation, so that both give the same numbers. Knows nothing of the terminal.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from cluster_planner import Plan
from ravnest.checkpoints.weight_files import open_weights
from ravnest.driver.stage_setups import evaluating_cluster, evaluation_batch
from ravnest.errors import InvalidInput, RunFailed, naming
from ravnest.formatting import size
from ravnest.free_memory import free_bytes
from ravnest.job.materials import baselines_of, capture_job, load_data, search_dirs
from ravnest.job.pretrained import saved_weights
from ravnest.results.portions import Span, batches_at_once, spans_within
from ravnest.results.span_evaluation import SpanEvaluation
from ravnest.results.trained_run import TrainedRun
from ravnest.splitting import CapturedModel
from ravnest.stage.device import HostDevice, stage_device
from ravnest.training.losses import build_loss, build_metrics
from ravnest.training.sampler import evaluation_batches

Part = Literal["held_out", "train"]

_WEIGHTS_SHARE = 0.5  # of the memory that is left: the rest is for activations, within spans and between them
_WAITING_SHARE = 0.125


@dataclass(frozen=True)
class Evaluation:
    """What weights came to on a set. `loss` and `metrics` are means over all of `samples`."""

    run: Path
    weights: Path
    data: Part
    samples: int
    loss: float
    metrics: Mapping[str, float]
    baselines: Mapping[str, float]
    """Of the held-out set; none for another."""
    seconds: float


def evaluate(
    run: TrainedRun,
    weights_path: Path,
    *,
    data: Part = "held_out",
    device: str = "cpu",
    step: Callable[[str], None] = lambda step: None,
    progress: Callable[[float], None] = lambda done: None,
) -> Evaluation:
    """The job's loss and metrics of the weights that `weights_path` names.

    `step` hears of each slow step as it begins, `progress` which part of the evaluation is done. Raises InvalidInput
    where code, data, weights or device are not those of the run's model, or not there.
    """
    job, job_file = run.job, run.job_file
    host = _device(device)
    step("reading the data")
    sets = load_data(job, job_file)
    step("capturing the model")
    captured = capture_job(job, job_file, sets)
    if captured.costs.fingerprint != run.plan.costs.fingerprint:
        message = "the model that the job makes now is not the one that was trained (its graph or shapes differ)"
        raise InvalidInput(message, path=job_file, key="model")
    weights = saved_weights(job, job_file, open_weights(weights_path))
    dataset, batch = getattr(sets, data), evaluation_batch(job, captured)
    batches = evaluation_batches(len(dataset), batch, short_last=captured.batch_is_dynamic)
    if not batches:
        message = f"`{data}` has {len(dataset)} samples, which fill no batch of {batch}: there is nothing to evaluate"
        raise InvalidInput(message, path=job_file, key="data.factory")
    spans = _spans(run.plan, captured, device)
    at_once = batches_at_once(captured.units, spans, batch, len(batches), int(_WAITING_SHARE * free_bytes()))
    samples = sum(map(len, batches))
    step(f"evaluating {samples:,} samples" + (f" in {len(spans)} spans of the model" if len(spans) > 1 else ""))
    began_s = time.monotonic()
    dirs = search_dirs(job_file)
    with naming(job_file):
        sums = SpanEvaluation(
            weights,
            dataset,
            build_loss(job.loss, dirs, device),
            build_metrics(job.metrics, dirs, device),
            device=host,
            device_name=device,
            precision=job.precision,
        )
        programs = [captured.span(*span) for span in spans]
        passed = 0

        def one_more() -> None:
            nonlocal passed
            passed += 1
            progress(passed / (len(batches) * len(spans)))

        for first in range(0, len(batches), at_once):
            sums.add(programs, batches[first : first + at_once], one_more)
    seconds = time.monotonic() - began_s
    baselines = baselines_of(sets) if data == "held_out" else {}
    return Evaluation(run.folder.path, weights_path, data, samples, sums.loss, sums.metrics, baselines, seconds)


def _device(name: str) -> HostDevice:
    """Raises InvalidInput where this machine has none such."""
    try:
        return stage_device(name)
    except RuntimeError:
        raise InvalidInput(
            f"torch knows no device {name!r}; expected one such as cpu or cuda:0", key="--device"
        ) from None
    except RunFailed as error:
        raise InvalidInput(str(error).replace("the node's device", "it"), key="--device") from None


def _spans(plan: Plan, captured: CapturedModel, device: str) -> list[Span]:
    """The stages of the cluster that evaluated in the run, cut further where memory is short."""
    left_bytes = int(torch.cuda.mem_get_info(device)[0]) if torch.device(device).type == "cuda" else free_bytes()
    stages = [stage.units for stage in evaluating_cluster(plan).stages]
    spans = spans_within(captured.units, stages, int(_WEIGHTS_SHARE * left_bytes))
    largest = max(captured.span(*span).weight_bytes for span in spans)
    if largest > left_bytes:
        message = (
            f"one of its units has {size(largest)} of weights, and {size(left_bytes)} of memory are left on {device}"
        )
        raise InvalidInput(message, key="model")
    return spans
