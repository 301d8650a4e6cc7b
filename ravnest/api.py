"""The Python door of ravnest: profile, doctor, plan, run, rehearse, simulate, evaluate and export, as functions.

In: files, or the objects that they describe. Out: typed results. `import ravnest` offers all of these functions, and
the commands of the command line are thin layers over them. A function imports what it needs when it is called, so that
a mistake in a file is reported before torch and Ray are loaded.

All functions raise only errors of ravnest.errors. An argument of type `StrPath` is the path of a file.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ravnest.files import StrPath, Tell, job_for, load_fleet, load_job, plan_of, read_plan, told_to

if TYPE_CHECKING:
    from cluster_planner import Fleet, Plan
    from ravnest.driver.observe.report import Observer, RunEvent, RunLimit, RunResult
    from ravnest.job.config import Job
    from ravnest.planning.prepare_plan import ExplainedPlan
    from ravnest.profiling.doctor import DoctorReport
    from ravnest.profiling.profile import Profile
    from ravnest.rehearsal.comparison import Rehearsal
    from ravnest.results.evaluation import Evaluation
    from ravnest.results.export import Exported
    from ravnest.simulator import Scenario, SimulatedRun
    from ravnest.training.precision import Precision


def profile(
    job: Job | StrPath | None = None,
    *,
    address: str | None = None,
    known: Fleet | None = None,
    peers: int = 6,
    seconds: float = 4.0,
    seed: int = 0,
    progress: Tell | None = None,
    warn: Tell | None = None,
) -> Profile:
    """Measures what machines can do and what joins them. The result's `fleet` is what nodes.yaml describes.

    Arguments:
        job: the job, or its job.yaml, with whose units speed is measured; without it, those of a small transformer.
        address: HOST:PORT of a running Ray cluster, all of whose nodes are measured; without it, this machine alone.
        known: a fleet whose nodes keep their names, by address. `Profile.merged_into` writes what was measured over it.
        peers: with how many others each node exchanges data, where there are more than 12 nodes.
        seconds: how long each transfer takes.
        seed: of the choice of peers.
        progress: is told of each slow step as it begins.
        warn: is told which files of the job's folder are not sent to the nodes.

    Raises:
        InvalidInput: where nothing listens at `address`, or the job cannot be captured. RunFailed where Ray cannot be
            joined, or no machine could be measured.
    """
    wanted = load_job(job) if isinstance(job, str | os.PathLike) else job
    job_file = Path(job) if isinstance(job, str | os.PathLike) else None if job is None else job.file
    from ravnest.profiling.node_agents import agents_at
    from ravnest.profiling.profile import ProfileRequest, profile

    names = {} if known is None else {node.address: node.name for node in known.nodes if node.address}
    asked = ProfileRequest(wanted, job_file, peers, seconds, seed)
    with agents_at(address, wanted, job_file, names, told_to(warn)) as agents:
        return profile(agents, asked, progress or _ignore)


def doctor(
    file: StrPath | None = None,
    *,
    address: str | None = None,
    progress: Tell | None = None,
    warn: Tell | None = None,
) -> DoctorReport:
    """Says what would make a run fail, or be slower or stranger than planned, before it does.

    Arguments:
        file: a plan.yaml or a nodes.yaml that the machines are to fit; without it, what Ray has, or this machine.
        address: HOST:PORT of a running Ray cluster; without it, this machine alone, which would run every stage.
        progress, warn: see `plan` and `run`.

    Raises:
        InvalidInput: for a file that is neither, and a plan that disagrees with its job.
    """
    from cluster_planner import holds_plan

    path = None if file is None else Path(file)
    plan = read_plan(path, warn)[1] if path is not None and holds_plan(path) else None
    fleet = load_fleet(path, warn=warn) if path is not None and plan is None else None
    from ravnest.profiling.doctor import examine

    return examine(plan, fleet, path, address, progress or _ignore)


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
    return explain_plan(fleet, job, seed=seed, constraints=False, progress=progress, warn=warn).plan


def explain_plan(
    fleet: Fleet | StrPath,
    job: Job | StrPath | None = None,
    *,
    seed: int = 0,
    constraints: bool = True,
    progress: Tell | None = None,
    warn: Tell | None = None,
) -> ExplainedPlan:
    """As `plan`, with the steps of the search, and with the job changes and constraints that limit the plan.

    `constraints` says whether to plan anew without single constraints of the fleet, to find what each of them costs.
    """
    path = Path(fleet) if isinstance(fleet, str | os.PathLike) else None
    machines = load_fleet(fleet, warn=warn) if isinstance(fleet, str | os.PathLike) else fleet
    wanted = job_for(path, job)
    from ravnest.planning.prepare_plan import prepare_plan

    return prepare_plan(
        machines,
        wanted,
        fleet_path=None if path is None else str(path),
        seed=seed,
        explain=constraints,
        step=progress or _ignore,
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
        observer: is told of each event, from the thread that calls `run`. Ctrl-C and SIGTERM stop a run with a
            checkpoint where that is the main thread.
        warn: is told where an edited plan predicts what is no longer true of it.

    Raises:
        InvalidInput: before anything is started. RunFailed, NodeLost or Interrupted afterwards.

    >>> result = ravnest.run(FOLDER / "plan.yaml", out=FOLDER / "first")
    >>> result.held_out_loss < result.baselines["guessing"]
    True
    >>> result.weights_path.name
    'weights.safetensors'
    """
    made, path = plan_of(plan, warn)
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
    made, path = plan_of(plan, warn)
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
    from ravnest.simulator.simulate import check_simulation, simulate_as_asked

    check_simulation(hours, samples, jitter, link_jitter_ms)  # before anything is read
    read, path = plan_of(plan, warn)
    from cluster_planner import predicted_again
    from ravnest.planning.workload import check_job_of_plan

    made = predicted_again(read)
    check_job_of_plan(made, path or "plan")
    return simulate_as_asked(
        made,
        scenario,
        hours=hours,
        samples=samples,
        seed=seed,
        jitter=jitter,
        link_jitter_ms=link_jitter_ms,
        plan_path=path,
        on_progress=progress,
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

    return evaluate(opened, weights_path, data=data, device=device, step=step or _ignore, progress=progress or _ignore)


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
    from ravnest.results.export import export_run

    return export_run(
        _folder(run),
        weights=_path(weights),
        huggingface=_path(huggingface),
        tensorboard=_path(tensorboard),
        dtype=dtype,
        part_gb=part_gb,
        job_path=_path(job),
        force=force,
        step=step or _ignore,
        progress=progress or _ignore,
    )


def _path(given: StrPath | None) -> Path | None:
    return None if given is None else Path(given)


def _folder(run: RunResult | StrPath) -> Path:
    return Path(run) if isinstance(run, str | os.PathLike) else run.out_dir


def _ignore(said: object) -> None:
    """Ignores what is told of progress."""


class _Unobserved:
    def on(self, event: RunEvent) -> None:
        """Ignores the events of a run that nobody observes."""
