"""What a user of ravnest does, as functions: load, plan, run, rehearse, simulate, evaluate, export.

In: files, or the objects that they describe. Out: typed results. `import ravnest` offers all of it by name, and the
commands of the command line are thin layers over it. A function imports what it needs when it is called, so that a
mistake in a file is told before torch and Ray are loaded.

Everything raises only errors of ravnest.errors. An argument named `StrPath` is the path of a file.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from cluster_planner import Fleet, Plan
    from ravnest.driver.observe.report import Observer, RunEvent, RunLimit, RunResult
    from ravnest.job.config import Job
    from ravnest.planning.prepare_plan import ExplainedPlan
    from ravnest.rehearsal.comparison import Rehearsal
    from ravnest.results.evaluation import Evaluation
    from ravnest.simulator import Scenario, SimulatedRun
    from ravnest.training.precision import Precision

StrPath = str | os.PathLike[str]

Tell = Callable[[str], None]
"""Takes one line of text."""


def load_fleet(path: StrPath, *, warn: Tell | None = None) -> Fleet:
    """The fleet of a nodes.yaml: machines, links, regions and constraints.

    `warn` is told, in a line each, what is possible and hardly meant; without it, it becomes a Python warning. Raises
    InvalidInput with the file and the key.
    """
    from cluster_planner import load_fleet

    return load_fleet(path, lambda said: _told(warn)(f"{path}: {said}"))


def save_fleet(fleet: Fleet, path: StrPath) -> None:
    """Writes nodes.yaml, in one step: a reader finds the old file or the whole new one."""
    from cluster_planner import save_fleet

    save_fleet(fleet, path)


def load_job(path: StrPath) -> Job:
    """The job of a job.yaml. Raises InvalidInput with a line for each mistake."""
    from ravnest.job.config import load_job

    return load_job(path)


def load_plan(path: StrPath) -> Plan:
    """The plan of a plan.yaml, checked as a whole, since it may have been edited. Raises InvalidInput."""
    from cluster_planner import load_plan

    return load_plan(path)


def save_plan(plan: Plan, path: StrPath) -> None:
    """Writes plan.yaml, in one step. It is complete in itself: it holds the job, the fleet and the model's costs."""
    from cluster_planner import save_plan

    save_plan(plan, path)


def plan(
    fleet: Fleet | StrPath,
    job: Job | StrPath | None = None,
    *,
    seed: int = 0,
    progress: Tell | None = None,
    warn: Tell | None = None,
) -> Plan:
    """Decides who trains which part of the model.

    Loads the job's data, runs its model once, captures and checks it, and searches for the best plan.

    Arguments:
        fleet: the machines, or the nodes.yaml that describes them.
        job: what is trained, or the job.yaml that describes it; without it, job.yaml beside the fleet's file.
        seed: of the search. The same input and seed give the same plan.
        progress: is told of each slow step as it begins.
        warn: is told what is possible and hardly meant; without it, that becomes a Python warning.

    Raises:
        InvalidInput: at a key of the fleet or the job. NoFeasiblePlan where the two do not fit each other.

    >>> plan = ravnest.plan(FOLDER / "nodes.yaml")
    >>> [(cluster.name, len(cluster.stages)) for cluster in plan.clusters]
    [('c0', 2), ('c1', 2)]
    >>> ravnest.save_plan(plan, FOLDER / "plan.yaml")
    """
    return _planned(fleet, job, seed, progress, warn, explain=False).plan


def explain_plan(
    fleet: Fleet | StrPath,
    job: Job | StrPath | None = None,
    *,
    seed: int = 0,
    progress: Tell | None = None,
    warn: Tell | None = None,
) -> ExplainedPlan:
    """As `plan`, with the steps of the search, and with what the plan would gain without single constraints."""
    return _planned(fleet, job, seed, progress, warn, explain=True)


def _planned(
    fleet: Fleet | StrPath,
    job: Job | StrPath | None,
    seed: int,
    progress: Tell | None,
    warn: Tell | None,
    *,
    explain: bool,
) -> ExplainedPlan:
    from ravnest.errors import InvalidInput

    path = Path(fleet) if isinstance(fleet, str | os.PathLike) else None
    machines = load_fleet(fleet, warn=warn) if isinstance(fleet, str | os.PathLike) else fleet
    if job is None and path is None:
        raise InvalidInput("is missing", key="job", hint="give a Job, or the path of a job.yaml")
    if job is None and path is not None:
        job = path.parent / "job.yaml"
        if not job.exists():
            hint = "write the job there, or name another one with job (--job on the command line)"
            raise InvalidInput("no such file", path=str(job), hint=hint)
    from ravnest.job.config import load_job
    from ravnest.planning.prepare_plan import prepare_plan

    wanted = load_job(job) if isinstance(job, str | os.PathLike) else job
    assert wanted is not None
    return prepare_plan(
        machines,
        wanted,
        fleet_path=None if path is None else str(path),
        seed=seed,
        explain=explain,
        step=progress or _silent,
    )


def run(
    plan: Plan | StrPath,
    *,
    out: StrPath | None = None,
    address: str | None = None,
    resume: bool = False,
    encrypt: bool = False,
    timeline: bool = False,
    limit: RunLimit | None = None,
    observer: Observer | None = None,
    warn: Tell | None = None,
) -> RunResult:
    """Trains as the plan says, through Ray, and returns what came of it.

    Arguments:
        plan: a plan, or the plan.yaml that describes it.
        out: the folder to write to; without it, a new folder in runs/, or with `resume` the newest one there.
        address: HOST:PORT of a running Ray cluster; without it, Ray starts on this machine and runs every stage.
        resume: go on from the last checkpoint in `out`.
        encrypt: encrypt tensors between the machines, with keys of this run.
        timeline: record what each stage does and when, in trace.json.
        limit: an earlier end than the job's own.
        observer: is told of each event, from the thread that calls `run`.
        warn: is told where an edited plan predicts what is no longer true of it.

    Raises:
        InvalidInput: before anything is started. RunFailed, NodeLost or Interrupted afterwards.

    >>> result = ravnest.run(FOLDER / "plan.yaml", out=FOLDER / "first")
    >>> result.held_out_loss < result.baselines["guessing"]
    True
    >>> result.weights_path.name
    'weights.safetensors'
    """
    made, path = _read(plan, warn)
    from ravnest.driver import run as train
    from ravnest.driver.observe.report import NO_LIMIT

    return train(
        made,
        path,
        address=address,
        resume=resume,
        out_dir=_path(out),
        observer=observer or _Unobserved(),
        encrypt=encrypt,
        timeline=timeline,
        limit=limit or NO_LIMIT,
    )


def rehearse(
    plan: Plan | StrPath,
    *,
    speed: float = 1.0,
    samples: int | None = None,
    minutes: float | None = None,
    whole: bool = False,
    out: StrPath | None = None,
    timeline: bool = False,
    observer: Observer | None = None,
    warn: Tell | None = None,
) -> Rehearsal:
    """Runs the plan on this machine with its nodes and links imitated, and compares it with what was predicted.

    Trains for real, for 24 updates of the slowest cluster and 4 rounds of averaging, but no longer than 3 minutes,
    unless one of `samples`, `minutes` and `whole` says otherwise.

    Arguments:
        plan: a plan, or the plan.yaml that describes it.
        speed: how many times as fast the imitated machines and links are; figures are scaled back.
        samples: end after so many samples of the fleet.
        minutes: end after so many minutes of this machine's time.
        whole: go on until the job's own end.
        out, timeline, observer, warn: see `run`.

    Raises:
        InvalidInput: for impossible arguments, and whatever `run` raises.
    """
    from ravnest.rehearsal.comparison import check_extent

    check_extent(speed, samples, minutes, whole=whole)  # before anything is read
    made, path = _read(plan, warn)
    from ravnest.rehearsal.rehearse import rehearse

    return rehearse(
        made,
        path,
        speed=speed,
        samples=samples,
        minutes=minutes,
        whole=whole,
        out_dir=_path(out),
        timeline=timeline,
        observer=observer or _Unobserved(),
    )


def simulate(
    plan: Plan | StrPath,
    *,
    hours: float | None = None,
    samples: int | None = None,
    seed: int = 0,
    scenario: Scenario | StrPath | None = None,
    jitter: float | None = None,
    link_jitter_ms: float | None = None,
    progress: Callable[[float, float, int], None] | None = None,
    warn: Tell | None = None,
) -> SimulatedRun:
    """Runs the plan under a virtual clock: no machine, model or data is needed.

    Arguments:
        plan: a plan, or the plan.yaml that describes it.
        hours: virtual hours of training; at most one of `hours` and `samples` is given. Without either it goes on until
            the job's own end (an hour where the job ends after epochs), or as far as some 5 million events reach.
        samples: end after so many samples of the fleet.
        seed: of all that chance decides. The same seed gives the same figures.
        scenario: jitter, stalls and changes of bandwidth, or the scenario.yaml that describes them.
        jitter: how much computations vary, as standard deviation over mean; replaces the scenario's.
        link_jitter_ms: by how many milliseconds a message may be late; replaces the scenario's.
        progress: is told the part that is done, the virtual time in seconds and the number of events so far.
        warn: see `run`.

    Raises:
        InvalidInput: for impossible arguments, a scenario that names unknown nodes, and a plan that was edited so that
            it disagrees with its job.

    >>> simulated = ravnest.simulate(FOLDER / "plan.yaml", samples=960)
    >>> simulated.samples >= 960, simulated.rounds > 0
    (True, True)
    """
    from ravnest.errors import InvalidInput

    if hours is not None and samples is not None:
        raise InvalidInput("hours and samples say when to end: give one of them", key="samples")
    if hours is not None and not 0 < 3600 * hours < float("inf"):
        raise InvalidInput(f"must be a finite number above 0, not {hours:g}", key="hours")
    if samples is not None and samples < 1:
        raise InvalidInput(f"must be at least 1, not {samples}", key="samples")
    for key, value in (("jitter", jitter), ("link_jitter_ms", link_jitter_ms)):
        if value is not None and not 0 <= value < float("inf"):
            raise InvalidInput(f"must be a finite number, 0 or more, not {value:g}", key=key)
    read, path = _read(plan, warn)
    from cluster_planner import predicted_again
    from ravnest.errors import naming
    from ravnest.planning.workload import check_job_of_plan
    from ravnest.simulator import Scenario, simulate
    from ravnest.simulator.scenario import load_scenario
    from ravnest.simulator.simulate import SimulationLength, default_length
    from ravnest.simulator.simulated_run import too_short

    made = predicted_again(read)
    check_job_of_plan(made, path or "plan")
    given = load_scenario(scenario) if isinstance(scenario, str | os.PathLike) else scenario or Scenario()
    if jitter is not None:
        given = replace(given, compute_jitter=jitter)
    if link_jitter_ms is not None:
        given = replace(given, link_jitter_s=link_jitter_ms / 1000)
    place = scenario if isinstance(scenario, str | os.PathLike) else path
    with nullcontext() if place is None else naming(place):
        if hours is None and samples is None:
            until = default_length(made, given, seed)
        else:
            until = SimulationLength(samples, None if hours is None else 3600 * hours, "")
        result = simulate(made, given, samples=until.samples, seconds=until.seconds, seed=seed, on_progress=progress)
    return replace(
        result, ended=until.reason, too_short=too_short(result, made), unreached=tuple(given.after(result.drain_s))
    )


def evaluate(
    run: RunResult | StrPath,
    *,
    weights: StrPath | None = None,
    data: Literal["held_out", "train"] = "held_out",
    device: str = "cpu",
    job: StrPath | None = None,
    step: Tell | None = None,
    progress: Callable[[float], None] | None = None,
) -> Evaluation:
    """Evaluates a run's weights on this machine, which need not be able to hold the whole model.

    Arguments:
        run: a run's result, or its folder.
        weights: other weights of the same model: a .safetensors file, a checkpoint, or a Hugging Face folder; without
            it, the run's last.
        data: which part of the job's data.
        device: where to compute, by torch's name: cpu, cuda, cuda:1 and so on.
        job: another job.yaml of the same model: one that has moved, or with other data or metrics.
        step: is told of each slow step as it begins.
        progress: is told which part of the evaluation is done, from 0 to 1.

    Raises:
        InvalidInput: where code, data, weights or device are not there, or are not those of the run's model.

    >>> evaluation = ravnest.evaluate(FOLDER / "first")
    >>> abs(evaluation.loss - result.held_out_loss) < 1e-4
    True
    """
    from ravnest.results.trained_run import open_run, weights_of_run

    opened = open_run(_folder(run), _path(job))
    weights_path = Path(weights) if weights is not None else weights_of_run(opened)
    from ravnest.results.evaluation import evaluate

    return evaluate(
        opened, weights_path, data=data, device=device, step=step or _silent, progress=progress or _unmeasured
    )


@dataclass(frozen=True)
class Exported:
    """What an export wrote."""

    files: tuple[Path, ...]
    """Of weights, with the index and the config where there are any."""

    points: int | None
    """How many points of curves TensorBoard got; None where that was not asked for."""


def export(
    run: RunResult | StrPath,
    *,
    weights: StrPath | None = None,
    huggingface: StrPath | None = None,
    tensorboard: StrPath | None = None,
    dtype: Precision | None = None,
    part_gb: float = 5.0,
    job: StrPath | None = None,
    force: bool = False,
    step: Tell | None = None,
    progress: Callable[[float], None] | None = None,
) -> Exported:
    """Writes a run's weights and metrics for other programs. The run may still be going on.

    Arguments:
        run: a run's result, or its folder.
        weights: a .safetensors file to write, under the model's own names.
        huggingface: a folder to write, as transformers' from_pretrained reads it.
        tensorboard: a folder for the metrics, as TensorBoard's event files.
        dtype: the weights' precision: float32, bfloat16 or float16; without it, the model's own.
        part_gb: weights beyond so many gigabytes are written in several files.
        job: where job.yaml lies now, if it has moved since the run.
        force: replace weights that are there.
        step, progress: see `evaluate`.

    Raises:
        InvalidInput: for impossible arguments, places that hold something else, and weights that are not the model's.

    >>> ravnest.export(FOLDER / "first", weights=FOLDER / "weights.safetensors").files[0].name
    'weights.safetensors'
    """
    from ravnest.results.trained_run import open_run, weights_of_run

    check_export(weights, huggingface, tensorboard, dtype=dtype, part_gb=part_gb, force=force)
    points, written = None, []
    if tensorboard is not None:
        from ravnest.results.tensorboard import to_tensorboard

        points = to_tensorboard(_folder(run), Path(tensorboard))
    if weights is not None or huggingface is not None:
        from ravnest.checkpoints.weight_files import open_weights
        from ravnest.results.export import ExportTarget, save_huggingface, save_weights

        opened = open_run(_folder(run), _path(job))
        files = open_weights(weights_of_run(opened))
        for given, key, save in ((weights, "weights", save_weights), (huggingface, "huggingface", save_huggingface)):
            if given is None:
                continue
            target = Path(given)
            folder, stem = (target.parent, target.stem) if key == "weights" else (target, "model")
            (step or _silent)(f"writing the weights to {folder / stem}.safetensors")
            place = ExportTarget(folder, stem, key, force, int(part_gb * 1e9))
            written += save(opened, files, place, dtype, progress or _unmeasured)
    return Exported(tuple(written), points)


def check_export(
    weights: StrPath | None,
    huggingface: StrPath | None,
    tensorboard: StrPath | None,
    *,
    dtype: Precision | None,
    part_gb: float,
    force: bool,
) -> None:
    """Raises InvalidInput where the arguments of `export` do not fit each other."""
    import math

    from ravnest.errors import InvalidInput

    if weights is None and huggingface is None:
        if tensorboard is None:
            raise InvalidInput("nothing was named to export", hint=_WHAT_TO_EXPORT)
        if dtype is not None or force:
            key = "force" if dtype is None else "dtype"
            raise InvalidInput("is about weights, and none are to be written", key=key, hint=_WHAT_TO_EXPORT)
    if weights is not None and (Path(weights).suffix != ".safetensors" or Path(weights).is_dir()):
        raise InvalidInput("expected the name of a .safetensors file", path=str(weights), key="weights")
    if not (math.isfinite(part_gb) and part_gb >= 0):
        raise InvalidInput(f"must be a finite number, 0 or more, not {part_gb:g}", key="part_gb")


_WHAT_TO_EXPORT = "name a file for weights, or a folder for huggingface or tensorboard"


def read_plan(path: StrPath, warn: Tell | None = None) -> tuple[Plan, Plan]:
    """The plan as its file has it, and the same plan with predictions that are true of it as it stands.

    The two differ where somebody has edited the file; `warn` is told then.
    """
    from cluster_planner import outdated, predicted_again

    plan = load_plan(path)
    again = predicted_again(plan)
    if (said := outdated(plan, again)) is not None:
        _told(warn)(f"{path}: {said}")
    return plan, again


def _read(plan: Plan | StrPath, warn: Tell | None) -> tuple[Plan, Path | None]:
    """A plan and the file that it was read from, if it was."""
    if isinstance(plan, str | os.PathLike):
        return read_plan(plan, warn)[0], Path(plan)
    return plan, None


def _told(warn: Tell | None) -> Tell:
    return warn if warn is not None else lambda said: warnings.warn(said, stacklevel=4)


def _path(given: StrPath | None) -> Path | None:
    return None if given is None else Path(given)


def _folder(run: RunResult | StrPath) -> Path:
    return Path(run) if isinstance(run, str | os.PathLike) else run.out_dir


def _silent(said: str) -> None:
    """Stands in for whoever listens, where nobody does."""


def _unmeasured(done: float) -> None:
    """Stands in for whoever measures progress, where nobody does."""


class _Unobserved:
    def on(self, event: RunEvent) -> None:
        """Stands in for whoever watches a run, where nobody does."""
