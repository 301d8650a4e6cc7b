"""Evaluates a run's weights on one machine, which need not hold the whole model.

In: a trained run, a file or folder of weights, and which set to evaluate on. Out: an `Evaluation` with the loss and the
metrics. The model goes through memory span by span, and the set in groups of batches, as many as memory allows. Batches
and operations are those of the run's own evaluation, so that both give the same numbers.
"""

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from cluster_planner import Plan, Unit
from ravnest.checkpoints.weight_files import WeightFiles
from ravnest.driver.stage_setups import evaluating_cluster
from ravnest.errors import Interrupted, InvalidInput, RunFailed, naming
from ravnest.factories import user_code
from ravnest.formatting import size
from ravnest.free_memory import free_bytes
from ravnest.job.experts_table import experts_open
from ravnest.job.materials import baselines_of, capture_job, load_data, search_dirs
from ravnest.job.pretrained import saved_weights
from ravnest.planning.workload import evaluation_batch
from ravnest.results.trained_run import TrainedRun
from ravnest.splitting import CapturedModel, StageModule, StageProgram
from ravnest.splitting.output_structure import shapes_of
from ravnest.splitting.program import check_inputs
from ravnest.stage.device import HostDevice, MixedPrecision, Tensors, stage_device
from ravnest.training.batches import Target, fetch, in_order, target_tensors, with_tensors
from ravnest.training.loss_parameters import module_with_parameters
from ravnest.training.losses import Loss, Metric, build_loss, build_metrics
from ravnest.training.named_measures import Measure
from ravnest.training.precision import Precision
from ravnest.training.sampler import EvaluationBatches

Span = tuple[int, int]


def spans_within(units: Sequence[Unit], stages: Sequence[Span], most_bytes: int) -> list[Span]:
    """The spans of the stages. One whose weights take more than `most_bytes` is cut further, greedily, between units.

    A single unit may still be larger than that.
    """
    found: list[Span] = []
    for begin, end in stages:
        start, held = begin, 0
        for number in range(begin, end):
            size = units[number].parameter_bytes + units[number].borrowed_bytes
            if number > start and held + size > most_bytes:
                found.append((start, number))
                start, held = number, 0
            held += size
        found.append((start, end))
    return found


def batches_at_once(units: Sequence[Unit], spans: Sequence[Span], samples: int, batches: int, most_bytes: int) -> int:
    """How many of `batches`, of `samples` each, may wait between two spans, so that their activations take at most
    `most_bytes`. It is at least 1."""
    widest = samples * max((units[end - 1].boundary_bytes for _, end in spans[:-1]), default=0)
    return min(batches, max(1, most_bytes // widest)) if widest else batches


class SpanEvaluation:
    """Adds up the job's measures over batches that come in groups."""

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        dataset: Any,
        loss: Loss,
        metrics: Sequence[Metric],
        *,
        device: HostDevice,
        device_name: str,
        precision: Precision = "float32",
    ) -> None:
        """
        Arguments:
            weights: those of the whole model by original name, which are read when they are asked for.
            device_name: torch's name of `device`.
        """
        self._weights = weights
        self._dataset = dataset
        self._metrics = metrics
        self._loss_module = module_with_parameters(loss)
        self._measures = [loss.measure, *(metric.measure for metric in metrics)]
        self._names = [("loss", loss.name), *(("metrics", metric.name) for metric in metrics)]
        self._sums = [Measure(0.0, 0) for _ in self._measures]
        self.samples = 0
        """How many samples have been measured."""
        self._device = device
        self._device_name = device_name
        self._precision = precision

    @property
    def loss(self) -> float:
        """The mean loss so far."""
        return self._sums[0].mean

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics so far, by name."""
        return {
            metric.name: metric.finish(sums.mean) for metric, sums in zip(self._metrics, self._sums[1:], strict=True)
        }

    @torch.no_grad()
    def add(self, programs: Sequence[StageProgram], batches: Sequence[range], done: Callable[[], None]) -> None:
        """Take `batches` (indices into the dataset) through all spans. `done` is called after each batch in each span.

        Raises InvalidInput where the user's own data, loss or metrics raise.
        """
        carried: list[Tensors] = [()] * len(batches)
        ours = gc.get_freeze_count() == 0  # what the user's program has frozen stays as it is
        if ours:
            gc.freeze()  # the collections below need not look at what was there before: each would take half a second
        try:
            for program in programs:
                self._through(program, batches, carried, done, ends=(program is programs[0], program is programs[-1]))
                gc.collect()  # a module with a parameter of its own refers to itself
        finally:
            if ours:
                gc.unfreeze()

    def _through(
        self,
        program: StageProgram,
        batches: Sequence[range],
        carried: list[Tensors],
        done: Callable[[], None],
        ends: tuple[bool, bool],
    ) -> None:
        """Take the batches through one span, whose weights are gone when this returns.

        `carried` holds each batch's tensors between the spans, and is replaced.
        """
        is_first, is_last = ends
        module, mixed = self._built(program, is_last=is_last), MixedPrecision(self._precision, self._device_name)
        for place, batch in enumerate(batches):
            given, target = carried[place], None
            if is_first or is_last:
                inputs, target = fetch(self._dataset, batch)
                given = in_order(inputs, [spec.name for spec in program.inputs]) if is_first else given
                if is_first:
                    check_inputs(program.inputs, given, f"the batch of samples {batch[0]} to {batch[-1]}")
            with mixed.forward():
                outputs = module(*self._device.bring(given))
            outputs = tuple(out.to(spec.dtype) for out, spec in zip(outputs, program.outputs, strict=True))
            if is_last:
                assert target is not None
                there = self._device.bring(target_tensors(target))
                self._measure(module.returned(outputs), with_tensors(target, there))
                self.samples += len(batch)
            carried[place] = () if is_last else self._device.take(outputs)
            done()
        mixed.weights_changed()

    def _built(self, program: StageProgram, *, is_last: bool) -> StageModule:
        # They are copied, because they lie in a mapped file, and a model may write to its buffers even in evaluation.
        own = {spec.name: self._weights[spec.name].to(spec.dtype, copy=True) for spec in program.weight_specs}
        loss = self._loss_module if is_last else None
        return StageModule(program, own, self._device_name, copy=False, loss=loss).eval()

    def _measure(self, output: Any, target: Target) -> None:
        shapes = shapes_of(output)
        for place, (measure, (key, name)) in enumerate(zip(self._measures, self._names, strict=True)):
            with user_code(f"{name!r}, on an output of {shapes},", key=key):
                self._sums[place] += measure(output, target)


DataSplit = Literal["held_out", "train"]

_WEIGHTS_SHARE = 0.5  # of the free memory; the rest is for activations, within spans and between them
_WAITING_SHARE = 0.125  # of the free memory: for activations that wait between two spans


@dataclass(frozen=True)
class Evaluation:
    """What the `weights` of a `run` give on a set. `loss` and `metrics` are means over all of `samples`."""

    run: Path
    weights: Path
    data: DataSplit
    samples: int
    loss: float
    metrics: Mapping[str, float]
    baselines: Mapping[str, float]
    """Losses on the held-out set to compare with; empty for another set, and for a part of it."""
    seconds: float
    """How long the evaluation took."""
    set_samples: int | None = None
    """How many samples the set has; None where they are those that were evaluated."""
    stopped_early: bool = False
    """Whether it was told to stop, so that what it measured is the beginning of what was asked for."""


class _StoppedError(Exception):
    """The evaluation is to end with what is measured."""


_LEAST_AT_ONCE, _MOST_GROUPS = 16, 10
"""Of a model in several spans, a tenth of the batches goes through all spans before the next: so there is something to
tell where the evaluation is stopped. The weights are read once for each such group."""


def chosen_batches(batches: Sequence[range], samples: int | None) -> list[range]:
    """Returns the least batches that hold so many samples, at equal distances in the set; all without `samples`."""
    if samples is None or not batches:
        return list(batches)
    count = min(len(batches), -(-samples // len(batches[0])))
    return [batches[number * len(batches) // count] for number in range(count)]


def evaluate(
    run: TrainedRun,
    files: WeightFiles,
    *,
    data: DataSplit = "held_out",
    samples: int | None = None,
    device: str = "cpu",
    step: Callable[[str], None] = lambda step: None,
    progress: Callable[[float], None] = lambda done: None,
    stop: Callable[[], bool] = lambda: False,
) -> Evaluation:
    """The job's loss and metrics with the weights in these files.

    Arguments:
        files: of one set of weights.
        data: which set to evaluate on.
        samples: how many samples of it, as whole batches from all over it; None: all.
        device: torch's name of the device to compute on.
        step: hears of each slow step, as it begins.
        progress: hears which share of the evaluation is done, from 0 to 1.
        stop: is asked after each batch in each span whether to end with what is measured.

    Raises:
        InvalidInput: the code, the data, the weights or the device do not exist, or do not fit the run's model.
        Interrupted: it was stopped before anything was measured.
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
    weights = saved_weights(job, job_file, files)
    dataset, batch = sets.part(data), evaluation_batch(job, captured)
    all_batches = EvaluationBatches(len(dataset), batch, short_last=captured.batch_is_dynamic)
    batches = chosen_batches(all_batches, samples)
    if not batches:
        message = f"`{data}` has {len(dataset)} samples, which fill no batch of {batch}: there is nothing to evaluate"
        raise InvalidInput(message, path=job_file, key="data.factory")
    spans = _spans(run.plan, captured, device)
    at_once = batches_at_once(captured.units, spans, batch, len(batches), int(_WAITING_SHARE * free_bytes()))
    if len(spans) > 1:
        at_once = min(at_once, max(_LEAST_AT_ONCE, -(-len(batches) // _MOST_GROUPS)))
    wanted = sum(map(len, batches))
    step(f"evaluating {wanted:,} samples" + (f" in {len(spans)} spans of the model" if len(spans) > 1 else ""))
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
            if stop():
                raise _StoppedError

        with experts_open(job.experts, programs, job_file), suppress(_StoppedError):
            for first in range(0, len(batches), at_once):
                sums.add(programs, batches[first : first + at_once], one_more)
    if sums.samples == 0:
        raise Interrupted("stopped before any of the samples were through: there is nothing to tell")
    whole = sum(map(len, all_batches))
    is_all = sums.samples == whole
    return Evaluation(
        run.folder.path,
        files.path,
        data,
        sums.samples,
        sums.loss,
        sums.metrics,
        baselines_of(sets) if data == "held_out" and is_all else {},
        time.monotonic() - began_s,
        set_samples=None if is_all else whole,
        stopped_early=sums.samples < wanted,
    )


def _device(name: str) -> HostDevice:
    """The device of this name. Raises InvalidInput where this machine has none such."""
    try:
        return stage_device(name)
    except RuntimeError:
        raise InvalidInput(
            f"torch knows no device {name!r}; expected one such as cpu or cuda:0", key="--device"
        ) from None
    except RunFailed as error:
        raise InvalidInput(str(error).replace("the node's device", "it"), key="--device") from None


def _spans(plan: Plan, captured: CapturedModel, device: str) -> list[Span]:
    """The spans of the cluster that evaluated in the run, cut further where memory is short."""
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
