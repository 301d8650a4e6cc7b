"""What a run leaves behind: the final weights, the loss curve, the summary, and a sample from the trained model.

In: a `Prepared`, the record of the run, and its control. Out: files in the run's folder, and a `RunResult`. The final
weights are the anchor of the last checkpoint, under the names of the original model.
"""

import dataclasses
import json
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from cluster_planner import Plan, SpanCosts, Stage
from ravnest.checkpoints.checkpoint import load_latest
from ravnest.checkpoints.manifest import segment_file
from ravnest.checkpoints.run_folder import RunFolder
from ravnest.checkpoints.sharded_weights import ShardedWeights
from ravnest.checkpoints.tensor_stream import TensorForm
from ravnest.checkpoints.weight_files import IN_PARTS, StoredTensors
from ravnest.driver import control as c
from ravnest.driver.observe import report
from ravnest.driver.observe.metrics_file import curve_records
from ravnest.driver.observe.record import RunRecord
from ravnest.driver.preparation import Prepared
from ravnest.errors import Interrupted, InvalidInput, NotWritten, RunFailed
from ravnest.factories import FactoryConfig, call
from ravnest.job.config import Job
from ravnest.job.experts_table import experts_open
from ravnest.job.initial_weights import WeightsFromSeed
from ravnest.job.materials import JobData, baselines_of, make_loss, make_model, search_dirs
from ravnest.pictures import draw_loss_curve
from ravnest.pipeline import stage_name
from ravnest.planning.mapped_weights import MAPPED_BYTES, MappedWeights, filled, weight_bytes
from ravnest.splitting.exporting import twin_on_cpu
from ravnest.splitting.model_source import extra_states
from ravnest.training.loss_parameters import loss_weights


def finish(
    prepared: Prepared, record: RunRecord, control: c.RunControl, *, encrypted: bool = False
) -> report.RunResult:
    """Write the files of a finished run, and return its result.

    Raises:
        Interrupted: the user has ended the run before its first checkpoint.
        RunFailed: the run was over before its first checkpoint, or the final weights could not be written.
        InvalidInput: the job's `sample` failed. The files are written all the same.
    """
    folder, plan, job, data = prepared.folder, prepared.plan, prepared.job, prepared.data
    if record.checkpoint_path is None:
        if control.stopped_early:
            raise Interrupted("stopped before the first update: there is nothing to save")
        raise RunFailed("the run ended before its first update: `stop` is too short")
    segments = [segment_file(ring) for ring in range(len(plan.rings))]
    saved = load_latest(folder.checkpoints, segments).weights()  # stages may be others than the plan's by now
    names = {name: name for name in saved}
    for name, others in prepared.captured.aliases.items():  # a file of weights has every name in the model's state
        names |= dict.fromkeys(others, name)
    weights = StoredTensors(saved.files, names)
    weights_path = _write_weights(folder, record.checkpoint_path, weights, int(job.checkpoints.part_gb * 1e9))
    baselines = baselines_of(data)
    final = next((event for event in reversed(record.evaluations) if event.final), None)
    drawn = _draw(folder, baselines, record)
    seconds = record.training_s
    result = report.RunResult(
        out_dir=folder.path,
        weights_path=weights_path,
        metrics_path=folder.metrics,
        checkpoint_path=record.checkpoint_path,
        loss_curve_path=folder.loss_curve if drawn else None,
        held_out_loss=None if final is None else final.loss,
        metrics={} if final is None else final.metrics,
        baselines=baselines,
        samples=control.samples,
        updates=sum(control.updates.values()),
        rounds=prepared.rounds_before + control.rounds_committed,
        seconds=seconds,
        samples_per_s=control.accounts.session_samples / seconds if seconds > 0 else 0.0,
        max_staleness=record.staleness_max,
        mean_staleness=record.staleness_sum / record.staleness_count if record.staleness_count else 0.0,
        sample_text=None,
        stopped_early=control.stopped_early,
        session_samples=None if prepared.start is None else control.accounts.session_samples,
        encrypted=encrypted,
        stages=stage_figures(record.plan or plan, record),
        trace_path=folder.trace if record.drawn else None,
        averaging_s=sum(record.rounds_s) / len(record.rounds_s) if record.rounds_s else None,
        windows={cluster.name: record.windows.get(cluster.name, cluster.window) for cluster in plan.clusters},
    )
    _write_summary(folder.summary, result, record)  # written already here, because the user's own code below may fail
    if job.sample is None or control.stopped_early:
        return result
    result = dataclasses.replace(result, sample_text=_sample(plan, job.sample, job, data, weights))
    _write_summary(folder.summary, result, record)
    return result


def stage_figures(plan: Plan, record: RunRecord) -> tuple[report.StageFigures, ...]:
    """The figures of every stage, in the order of the plan."""
    figures = []
    spans = SpanCosts(plan.costs, plan.workload)
    for cluster in plan.clusters:
        for index, stage in enumerate(cluster.stages):
            name, memory = stage_name(cluster.name, index), None
            if name in record.tensor_bytes:
                parts = record.tensor_bytes[name]
                window = max(cluster.window, record.largest_windows.get(cluster.name, 0))
                planned = planned_bytes(plan, spans, stage, (index, len(cluster.stages)), window)
                memory = report.StageMemory(planned, sum(parts.values()), parts, window)
            times, counts = record.times, record.staleness.get(name, [])
            update_s, late = times.update_s(name), record.imitated.get(name)
            figures.append(
                report.StageFigures(
                    name,
                    stage.node,
                    times.steady(name),
                    times.overall(name),
                    memory,
                    step_s=None if update_s is None else update_s / plan.workload.update_every,
                    mean_staleness=sum(age * n for age, n in enumerate(counts)) / sum(counts) if counts else None,
                    max_staleness=len(counts) - 1 if counts else None,
                    late_share=late.late_s / late.imitated_s if late is not None and late.imitated_s else None,
                    link_late_s=late.links_late_s / late.messages if late is not None and late.messages else None,
                )
            )
    return tuple(figures)


def planned_bytes(plan: Plan, spans: SpanCosts, stage: Stage, place: tuple[int, int], window: int) -> int:
    """What the planner counts for a stage's tensors with this window, which may have been tuned in the run."""
    planned = spans.stage_memory_bytes(*stage.units, place, window, recomputes=stage.recomputes)
    node = plan.fleet.node(stage.node)
    if not stage.recomputes and spans.room_to_split(*stage.units, place, window, node.room_bytes):
        planned += spans.split_bytes(*stage.units)
    return planned - plan.workload.process_bytes


def _sample(plan: Plan, sample: FactoryConfig, job: Job, data: JobData, weights: Mapping[str, Tensor]) -> str:
    """The text that the job's `sample` makes with the trained model. Raises InvalidInput when it returns no text."""
    of_loss = loss_weights(make_loss(job, plan.job_file)).keys()
    model, sparing = trained_model(plan, job, weights.keys() - of_loss, weights)
    with sparing, experts_open(job.experts, model, plan.job_file):
        text = call(sample, search_dirs(plan.job_file), model.eval(), data.given, path=plan.job_file, key="sample")
    if not isinstance(text, str):
        raise InvalidInput(
            f"{sample.factory!r} returned {type(text).__name__}, expected text", path=plan.job_file, key="sample"
        )
    return text


def trained_model(
    plan: Plan, job: Job, names: Collection[str], weights: Mapping[str, Tensor], mapped_bytes: int = MAPPED_BYTES
) -> tuple[nn.Module, AbstractContextManager[Any]]:
    """The job's model with the weights of these names, and a context to use it in.

    A model of `mapped_bytes` or more has its large weights in temporary files. In the context it takes the memory of
    what an operation reads.
    """
    shape = make_model(job, plan.job_file, "meta")
    others = WeightsFromSeed(job, plan.job_file, parameters=False)
    if weight_bytes(shape) < mapped_bytes or others.whole_because or extra_states(shape):
        model = make_model(job, plan.job_file)
        model.load_state_dict({name: weights[name] for name in names}, strict=True)
        return model, nullcontext()
    files = MappedWeights()
    model = filled(twin_on_cpu(shape), lambda name: weights[name] if name in names else others[name], files)
    return model, files.sparing()


def _write_weights(folder: RunFolder, checkpoint: Path, weights: StoredTensors[str], part_bytes: int) -> Path:
    """Write the final weights, a tensor at a time: one file, or a folder of parts where they are more than
    `part_bytes`. Returns which of the two it is; the other, of an earlier session, is gone then."""
    forms = {name: TensorForm.of(name, weights[name]) for name in weights}
    in_parts = ShardedWeights(folder.path / IN_PARTS, "model", part_bytes)
    in_one = ShardedWeights(folder.path, folder.weights.stem, part_bytes)
    chosen, other = (in_one, in_parts) if in_one.fits(forms) else (in_parts, in_one)
    try:
        chosen.write(forms, weights.__getitem__)
        other.remove()
    except NotWritten as error:
        error.hint = (
            f"the trained weights are safe in {checkpoint}: make room, then write them with"
            f" `ravnest export {folder.path} --weights FILE`"
        )
        raise
    return folder.weights if chosen is in_one else in_parts.folder


def _draw(folder: RunFolder, baselines: Mapping[str, float], record: RunRecord) -> bool:
    """Draw the loss curve, and say whether that was possible. The weights are written already, so nothing else is."""
    try:
        draw_loss_curve(curve_records(folder.metrics), baselines, folder.loss_curve)
    except (OSError, InvalidInput) as error:
        reason = str(error) if isinstance(error, InvalidInput) else f"{folder.loss_curve}: {error.strerror or error}"
        record.tell(f"there is no loss curve: {reason}")
        return False
    return True


def _write_summary(path: Path, result: report.RunResult, record: RunRecord) -> None:
    try:
        path.write_text(json.dumps(report.as_plain(result), indent=2, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        record.tell(f"{path}: cannot be written: {error.strerror or error}")
