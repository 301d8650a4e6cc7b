"""The Python door of ravnest to a run: plan, run, rehearse, simulate, evaluate and export, as functions.

In: files, or the objects that they describe. Out: typed results. `import ravnest` offers all of these functions, and
the commands of the command line are thin layers over them; the door to the machines themselves, profile and doctor, is
ravnest/machines.py. A function imports what it needs when it is called: a mistake in a file is told before torch loads.
All functions raise only errors of ravnest.errors. An argument of type `StrPath` is the path of a file.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ravnest.errors import InvalidInput
from ravnest.files import StrPath, Tell, fleet_of, ignore, job_for, plan_of, told_to
from ravnest.free_memory import take_huge_pages
from ravnest.machines import all_here

if TYPE_CHECKING:
    from cluster_planner import Fleet, Plan
    from ravnest.driver.observe.report import Observer, RunLimit, RunResult
    from ravnest.job.config import Job
    from ravnest.planning.prepare_plan import ExplainedPlan
    from ravnest.planning.searching_on import Budget
    from ravnest.rehearsal.comparison import Rehearsal
    from ravnest.results.evaluation import Evaluation
    from ravnest.results.export import Exported
    from ravnest.simulator import Scenario, SimulatedRun
    from ravnest.training.precision import Precision


def plan(
    fleet: Fleet | StrPath,
    job: Job | StrPath | None = None,
    *,
    seed: int = 0,
    check: str = "full",
    cache: bool = True,
    min_stages: int = 1,
    progress: Tell | None = None,
    warn: Tell | None = None,
) -> Plan:
    """Decides who trains which part of the model.

    Loads the job's data, runs its model once, captures and checks it, and searches for the best plan.

    Arguments:
        fleet: the machines, or the nodes.yaml that describes them.
        job: what is trained, or the job.yaml that describes it; without it, job.yaml beside the fleet's file.
        seed: of the search. The same input and seed give the same plan.
        check: how much of the model is tried with values: `full`; `sampled` for two of the blocks that repeat; `none`.
        cache: whether a check of the same job that was made before counts, and this one is kept.
        min_stages: the stages of a cluster, at the least. With 1, a machine that holds the model may train by itself
            beside the others; with 2, each cluster is a pipeline. A fleet of one machine always makes one stage.
        progress: is told of each slow step as it begins.
        warn: is told what is possible and hardly meant; without it, that becomes a Python warning.

    Raises:
        InvalidInput: at a key of the fleet or the job. NoFeasiblePlan where the two do not fit each other.

    >>> plan = ravnest.plan(FOLDER / "nodes.yaml", min_stages=2)
    >>> [(cluster.name, len(cluster.stages)) for cluster in plan.clusters]
    [('c0', 2)]
    >>> ravnest.save_plan(plan, FOLDER / "plan.yaml")
    """
    return explain_plan(
        fleet,
        job,
        seed=seed,
        check=check,
        cache=cache,
        min_stages=min_stages,
        constraints=False,
        progress=progress,
        warn=warn,
    ).plan


def explain_plan(
    fleet: Fleet | StrPath,
    job: Job | StrPath | None = None,
    *,
    seed: int = 0,
    check: str = "full",
    cache: bool = True,
    min_stages: int = 1,
    constraints: bool = True,
    budget: Budget | None = None,
    progress: Tell | None = None,
    part: Callable[[float], None] | None = None,
    warn: Tell | None = None,
    so_far: Callable[[Plan, str], None] | None = None,
) -> ExplainedPlan:
    """Plans as `plan` does, and adds the steps of the search and the job changes and constraints that limit the plan.

    `constraints`: whether to plan anew without single constraints, to find what each costs. `budget`: for how long to
    search on after the first plan. `part` is told how far the present step is (0 to 1), where that is known, and
    `so_far` of each plan that is found and what it lacks, also of the best where KeyboardInterrupt ends the search.
    """
    machines, path = fleet_of(fleet, warn)
    if check == "sampled":
        take_huge_pages()  # before the job is read, whose optimizer is made to see whether torch takes its settings
    wanted = job_for(path, job)
    from ravnest.planning.prepare_plan import prepare_plan

    return prepare_plan(
        machines,
        wanted,
        fleet_path=None if path is None else str(path),
        seed=seed,
        min_stages=min_stages,
        explain=constraints,
        check=check,
        cache=cache,
        budget=budget,
        step=progress or ignore,
        part=part or ignore,
        warn=told_to(warn),
        so_far=so_far or (lambda plan, lacks: None),
    )


def run(
    plan: Plan | StrPath,
    *,
    out: StrPath | None = None,
    address: str | None = None,
    resume: bool = False,
    other_data: bool = False,
    encrypt: bool | None = None,
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
        other_data: resume although the data are not those that the checkpoint was made with.
        encrypt: encrypt tensors between the machines, with keys of this run; None does so with an `address`.
        timeline: record what each stage does and when, in trace.json.
        limit: an earlier end than the job's own.
        observer: is told of each event, from the thread that calls `run`; in a notebook the cell shows a plot
            without one. Ctrl-C and SIGTERM stop a run with a checkpoint where that is the main thread.
        warn: is told where an edited plan predicts what is no longer true of it, and, without `address`, of nodes
            that have an address elsewhere; without it, that becomes a Python warning.

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
    from ravnest.profiling.machine_facts import own_addresses

    if address is None and (said := all_here(made, own_addresses())) is not None:
        told_to(warn)(said)
    from ravnest.driver.observe.report import NO_LIMIT
    from ravnest.notebook import observer_here

    return train(
        made,
        path,
        address=address,
        resume=resume,
        other_data=other_data,
        out_dir=_path(out),
        observer=observer or observer_here(),
        encrypt=address is not None if encrypt is None else encrypt,
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
    scenario: Scenario | StrPath | None = None,
    observer: Observer | None = None,
    warn: Tell | None = None,
) -> Rehearsal:
    """Runs the plan on this machine with its nodes and links imitated, and compares it with what was predicted.

    Trains for real, for 24 updates of the slowest cluster and 4 rounds of averaging, but no longer than 3 minutes,
    unless one of `samples`, `minutes` and `whole` says otherwise.

    Arguments:
        plan: a plan, or the plan.yaml that describes it.
        speed: how many times as fast the imitated machines and links are; figures are scaled back.
        samples, minutes: end after so many samples of the fleet, or minutes of this machine's time.
        whole: go on until the job's own end.
        scenario: machines that come and go meanwhile, or the scenario.yaml that describes them.
        out, timeline, observer, warn: see `run`.

    Raises InvalidInput for impossible arguments, and whatever `run` raises.
    """
    from ravnest.rehearsal.comparison import check_extent

    check_extent(speed, samples, minutes, whole=whole)  # before anything is read
    made, path = plan_of(plan, warn)
    from ravnest.notebook import observer_here
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
        scenario=scenario,
        observer=observer or observer_here(),
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
    stop: Callable[[], bool] | None = None,
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
        stop: is asked after each 65,536 events whether to end there; the result is then of what was simulated.
        warn: see `run`.

    Raises InvalidInput for impossible arguments, a scenario with unknown nodes, and a plan that disagrees with its job.

    >>> simulated = ravnest.simulate(FOLDER / "plan.yaml", samples=960)
    >>> simulated.samples >= 960, simulated.rounds > 0
    (True, True)
    """
    from ravnest.simulator.simulation_request import check_simulation, simulate_as_asked

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
        stop=stop,
    )


def evaluate(
    run: RunResult | StrPath,
    *,
    weights: StrPath | None = None,
    data: Literal["held_out", "train"] = "held_out",
    samples: int | None = None,
    device: str = "cpu",
    job: StrPath | None = None,
    step: Tell | None = None,
    progress: Callable[[float], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> Evaluation:
    """Evaluates a run's weights on this machine, which need not be able to hold the whole model.

    Arguments:
        run: a run's result, or its folder.
        weights: those in a .safetensors file, a checkpoint or a Hugging Face folder; without it, the run's last.
        data: which part of the job's data.
        samples: how many samples of it, as whole batches from all over it; without it, all.
        device: where to compute, by torch's name: cpu, cuda, cuda:1 and so on.
        job: another job.yaml of the same model: one that has moved, or with other data or metrics.
        step: is told of each slow step as it begins.
        progress: is told which part of the evaluation is done, from 0 to 1.
        stop: is asked after each batch whether to end there; the result is then of the batches that are through.

    Raises:
        InvalidInput: where code, data, weights or device are not there, or are not those of the run's model.
        Interrupted: where it is told to stop before any batch is through.

    >>> evaluation = ravnest.evaluate(FOLDER / "first")
    >>> abs(evaluation.loss - result.held_out_loss) < 1e-4
    True
    """
    if data not in ("held_out", "train"):
        raise InvalidInput(f"must be held_out or train, not {data!r}", key="data")
    if samples is not None and samples < 1:
        raise InvalidInput(f"must be at least 1, not {samples}", key="samples")
    from ravnest.checkpoints.weight_files import open_weights
    from ravnest.results.trained_run import open_run, open_weights_of_run

    opened = open_run(_folder(run), _path(job))
    files = open_weights_of_run(opened) if weights is None else open_weights(Path(weights))
    from ravnest.results.evaluation import evaluate

    return evaluate(
        opened,
        files,
        data=data,
        samples=samples,
        device=device,
        step=step or ignore,
        progress=progress or ignore,
        stop=stop or (lambda: False),
    )


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

    Raises InvalidInput for impossible arguments, places that hold something else, and weights that are not the model's.

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
        step=step or ignore,
        progress=progress or ignore,
    )


def _path(given: StrPath | None) -> Path | None:
    return None if given is None else Path(given)


def _folder(run: RunResult | StrPath) -> Path:
    return Path(run) if isinstance(run, str | os.PathLike) else run.out_dir
