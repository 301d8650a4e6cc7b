"""Makes a plan for a fleet and a job.

In: a fleet and a job. Out: an `ExplainedPlan`, which is the plan and what is needed to explain it. The steps, in this
order, are: load the data, run the model once, capture it, check that the captured units reproduce it, ask the planner.

The user's code is tried on one micro-batch before hours are planned for it: the model's forward, the loss, the metrics
and the optimizer are run, the callable of `sample` is looked up, and the memory that all this takes is compared with
what is free. What fails is an InvalidInput that names the job file, the key and the line in the user's code.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace

from cluster_planner import (
    ConstraintCosts,
    Fleet,
    NoFeasiblePlan,
    Plan,
    Step,
    Workload,
    format_count,
    make_plan,
    most_of_a_round,
    with_advice_planned,
    with_best_staleness,
    without_constraints,
)
from ravnest.errors import InvalidInput, naming
from ravnest.free_memory import free_bytes
from ravnest.job.config import Job
from ravnest.job.experts_table import check_experts, experts_stand_in
from ravnest.job.initial_weights import WeightsFromSeed
from ravnest.job.job_of_plan import as_planned
from ravnest.job.materials import (
    JobData,
    capture_job,
    check_shares,
    first_batch,
    load_data,
    make_loss,
    make_model,
    total_samples,
)
from ravnest.job.pretrained import pretrained_weights
from ravnest.planning.bottleneck_advice import with_bottlenecks_advised
from ravnest.planning.job_checks import (
    check_buffers,
    check_devices,
    check_optimizer,
    check_sample,
    of_loaded_weights,
    run_once,
)
from ravnest.planning.kept_checks import (
    CheckedModel,
    KeptChecks,
    mark_of,
    noting_files,
    pipelines_of,
    units_of,
)
from ravnest.planning.loss_trial import check_gradients, check_measures, check_target, warn_of_idle
from ravnest.planning.model_checks import check_forwards, check_numbers, check_trains, of_taken_buffers
from ravnest.planning.reading import check_forms, check_reading, starved_words
from ravnest.planning.searching_on import Budget, searched_on
from ravnest.planning.trial import try_plan
from ravnest.planning.tried_model import Check, TriedModel, check_of, tried_model
from ravnest.planning.warmup import check_warmup, most_samples, unreached_warmup
from ravnest.planning.workload import with_optimizer, workload
from ravnest.splitting import CapturedModel, twin_of, verify
from ravnest.splitting.model_source import noting_loaded_weights, pretrained_sources, values_of, weights_of
from ravnest.splitting.module_outputs import module_outputs
from ravnest.splitting.thinning import KEPT
from ravnest.training.batches import Inputs, Target, arguments
from ravnest.training.fingerprint import fingerprint
from ravnest.training.loss_parameters import loss_weights

MOST_SEED = 2**32 - 1
"""The largest seed that k-means takes."""

NOTHING_RELAXED = ConstraintCosts()

UNTRIED, UNADVISED = "its stages were not tried", "what is advised was not planned"
UNEXPLAINED = f"{UNTRIED}, and it has neither advice, reasons of spares, nor warm spares"
"""What a plan lacks with which planning was interrupted."""

MOST_NODES_ADVISED = 200
"""In larger fleets the change that is advised is planned anew only where explanations are asked for."""


@dataclass(frozen=True)
class ExplainedPlan:
    """A plan, how it was found, and what would change it."""

    plan: Plan
    search: tuple[Step, ...]
    """The steps of the planner's search, in order."""
    largest_round: float
    """The largest `average_every` to advise, in samples, for a training as long as the job's `stop` says."""
    relaxed: ConstraintCosts = NOTHING_RELAXED
    """What the plan would gain without single constraints of nodes.yaml, where that was asked for."""


def prepare_plan(
    fleet: Fleet,
    job: Job,
    *,
    fleet_path: str | None = None,
    seed: int = 0,
    min_stages: int = 1,
    explain: bool = False,
    check: str = "full",
    cache: bool = True,
    budget: Budget | None = None,
    step: Callable[[str], None],
    part: Callable[[float], None] = lambda done: None,
    warn: Callable[[str], None] = lambda words: None,
    so_far: Callable[[Plan, str], None] = lambda plan, lacks: None,
) -> ExplainedPlan:
    """The plan for a fleet and a job.

    Arguments:
        fleet_path: the file that the fleet was read from, for errors; None for a fleet made in Python.
        seed: of the planner's search, from 0 to MOST_SEED.
        min_stages: the stages of a cluster, at the least.
        explain: whether to plan again without single constraints, to see what each of them costs.
        check: how much of the model is tried with values: `full`; `sampled` for two of the blocks that repeat, where
            the model has such; `none`.
        cache: whether a check of the same job that was made before counts, and this one is kept.
        budget: for how long to search on after the first plan; None: not at all.
        step: is told of each slow step as it begins.
        part: is told how far that step is, from 0 to 1, where it is known.
        warn: is told what is possible and hardly meant.
        so_far: is given each plan as it is found, an interrupted search's too, and what it lacks (UNTRIED, for one).

    Raises:
        InvalidInput: at a key of the job or the fleet. NoFeasiblePlan where the two do not fit each other.
    """
    if not 0 <= seed <= MOST_SEED:
        raise InvalidInput(f"must be from 0 to {MOST_SEED}, not {seed}", key="seed")
    extent = check_of(check)
    if min_stages < 1:
        raise InvalidInput(f"must be 1 or more, not {min_stages}", key="min_stages")
    if 1 < (most := len(fleet.nodes)) < min_stages:
        raise InvalidInput(f"must be at most the number of nodes, {most}, not {min_stages}", key="min_stages")
    job_path = job.file
    if job.mode != "planned":
        hint = "ravnest collaborate start"
        raise InvalidInput("volunteers need no plan: expected planned", path=str(job_path), key="mode", hint=hint)
    searched: list[Step] = []
    check_devices(fleet, fleet_path)
    step("loading the data")
    check_sample(job, job_path)
    memory = KeptChecks.of_user() if cache else None
    with noting_files() as opened:
        data = load_data(job, job_path)
        batch = first_batch(job, job_path, data)
    total = total_samples(job, len(data.train), job_path)
    at_least = fleet.constraints.min_clusters
    check_warmup(job, job_path, total, at_least)
    trained_samples = math.inf if total is None else float(total)
    trained_s = math.inf if job.stop.minutes is None else 60.0 * job.stop.minutes
    with naming(job_path):
        of_data = fingerprint(data.train, data.held_out)
    mark = "" if memory is None else mark_of(job, of_data, extent)
    found = None if memory is None else memory.find(mark)
    live: _Live | None = None
    if found is not None:
        step("taking what was found of this job before (--no-cache looks at it again)")
        for words in found.warnings:
            warn(words)
    else:
        said: list[str] = []

        def heard(words: str) -> None:
            said.append(words)
            warn(words)

        with noting_files() as read, experts_stand_in(job.experts):
            live = _checked(job, data, batch, extent, (step, part), heard)
        opened |= read | live.files
        found = replace(live.found, warnings=tuple(said))
        if memory is not None and live.may_be_kept:  # also for a plan that is refused or interrupted
            memory.keep(mark, found, opened)
    step(f"planning for {format_count(len(fleet.nodes), 'node')}")
    costs, work = found.costs.with_traffic(fleet.flops_per_byte), workload(job, found.reading_s, data.workers)
    check_warmup(job, job_path, most_samples(job, fleet, costs, work), at_least)

    def planned(work: Workload) -> Plan:
        made = make_plan(
            fleet,
            costs,
            work,
            job=as_planned(job, work).model_dump(mode="json"),
            job_file=str(job_path),
            seed=seed,
            min_stages=min_stages,
            trained_samples=trained_samples,
            trained_s=trained_s,
            progress=searched.append,
            interrupted=lambda best: so_far(replace(best, data=of_data), UNEXPLAINED),
        )
        so_far(replace(made, data=of_data), UNTRIED)
        return made

    with (
        _told_what_forbids_cuts(found.whole_because),
        nullcontext() if fleet_path is None else naming(fleet_path, "nodes"),
    ):
        auto = job.max_staleness == "auto"
        plan = with_best_staleness(planned, work, searched.append) if auto else planned(work)
    plan, job = replace(plan, data=of_data), as_planned(job, plan.workload)
    check_shares(job, job_path, plan, data.train)
    tried = _tried(plan, job, data, extent, found, live, step, any_cuts=budget is not None)
    found = replace(found, tried=(*found.tried, *tried))
    if memory is not None:
        memory.add_tried(mark, tried)
    so_far(plan, UNADVISED)
    if budget is not None:
        budget.first(plan)
        step("searching on")
        first, trained = plan, (trained_samples, trained_s)
        plan = searched_on(plan, budget, step, trained=trained, part=part, tell=searched.append)
        if plan is not first:
            check_shares(job, job_path, plan, data.train)
            tried = _tried(plan, job, data, extent, found, live, step)
            if memory is not None:
                memory.add_tried(mark, tried)
            so_far(plan, UNADVISED)
        budget.last()
    for sentence in (starved_words(plan), unreached_warmup(job, plan, total)):
        if sentence is not None:
            warn(sentence)
    if len(plan.clusters) > 1 and found.taken_buffers:
        warn(found.taken_buffers)
    if not explain and budget is not None and budget.stop():
        warn(f"searching on was interrupted: {UNADVISED}")
    elif explain or len(fleet.nodes) <= MOST_NODES_ADVISED:
        step("planning what is advised")
        plan = with_advice_planned(plan, trained_samples=trained_samples, trained_s=trained_s)
        plan = with_bottlenecks_advised(plan, job, data, found.outputs)
    largest_round = most_of_a_round(trained_samples, trained_s, plan.predicted.samples_per_s)
    relaxed = without_constraints(plan, tell=step) if explain else NOTHING_RELAXED
    return ExplainedPlan(plan, tuple(searched), largest_round, relaxed)


@dataclass(frozen=True)
class _Live:
    """A model that was captured here."""

    found: CheckedModel
    tried: TriedModel | None
    compared: CapturedModel | None
    """The capture of `tried`."""
    check_s: float = 0.0
    may_be_kept: bool = False
    files: frozenset[str] = frozenset()
    """What was read without Python's noticing."""


def _checked(
    job: Job,
    data: JobData,
    batch: tuple[Inputs, Target],
    extent: Check,
    told: tuple[Callable[[str], None], Callable[[float], None]],
    warn: Callable[[str], None],
) -> _Live:
    """The job's model, run, captured and checked. `told`: of each slow step, and how far it is. Raises InvalidInput."""
    job_path, (step, part) = job.file, told
    inputs, target = batch
    if not (data.train.holds_tensors and data.held_out.holds_tensors):
        step("reading samples in two processes")
    check_reading(job, job_path, data)
    reading_s = check_forms(job, job_path, data)
    if (repeated := check_target(job, job_path, inputs, target)) is not None:
        warn(repeated)
    args, kwargs = arguments(inputs)
    step("running the model on the first micro-batch")
    with noting_loaded_weights() as loaded:
        shape = make_model(job, job_path, "meta")
        from_seed = WeightsFromSeed(job, job_path)
        tried = tried_model(job, job_path, shape, extent, free_bytes(), from_seed)
    if sources := [*loaded.sources, *pretrained_sources(shape if tried is None else tried.model)]:
        warn(of_loaded_weights(job, sources))
    check_optimizer(job, job_path, shape)
    if tried is None:
        warn("--check none: neither the model nor its stages were tried; what is wrong with them shows in the run")
    else:
        with tried.told(), tried.sparing():
            with naming(job_path):
                warm = None if tried.mapped is None else twin_of(tried.model)
            output = run_once(tried.model, args, kwargs, job_path, twin=warm)
            check_measures(job, job_path, output, target)
            check_forwards(tried.model, args, kwargs, job_path, output, warm=warm)
            del output, warm
    step("capturing the model")
    captured = capture_job(job, job_path, data)
    if not_counted := check_experts(job.experts, captured.span(0, len(captured.units)), job_path):
        warn(not_counted)
    if captured.needs_values:
        warn(
            "the model was captured with its weights in memory, since it cannot be without"
            f" ({captured.needs_values}): each start of a run, and `evaluate`, hold it whole for a moment"
        )
    if why := from_seed.whole_because:
        warn(
            f"the weights cannot be made by the stages that hold them ({why}): each start of a run makes them whole and"
            " sends them"
        )
    check_trains(captured, shape, job_path)
    check_numbers(captured, job_path)
    pretrained = pretrained_weights(job, job_path, captured)
    files = frozenset() if pretrained is None else frozenset(str(one.file) for one in pretrained.files.stored.values())
    check_buffers(job, job_path, captured)
    check_s, compared = 0.0, None
    if tried is not None:
        compared = tried.capture(job, job_path, data, captured)
        with tried.told(), tried.sparing():
            idle = check_gradients(job, job_path, compared, values_of(tried.model), inputs, target)
            warn_of_idle(job_path, shape, idle, warn)
            of = "" if tried.blocks is None else f", with {KEPT} of its {tried.blocks.count} equal blocks"
            step(f"checking {format_count(len(compared.units), 'unit')} against the model{of}")
            began_s = time.monotonic()
            with naming(job_path, "model"):
                verified = verify(
                    compared, tried.model, args, kwargs, whole=tried.mapped is None, hold=tried.hold, part=part
                )
            if verified.not_widened:
                warn(
                    "the stages of this model of 16-bit types were compared with it to within 4 roundings only, and not"
                    f" in float32: {verified.not_widened}"
                )
            check_s = time.monotonic() - began_s
    costs = with_optimizer(captured, job)
    whole_because, taken = captured.whole_because, of_taken_buffers(job, job_path, captured)
    found = CheckedModel(costs, reading_s, whole_because, taken, outputs=module_outputs(captured))
    # Values that a constructor loads, perhaps from elsewhere than a file, are looked at each time.
    return _Live(found, tried, compared, check_s, may_be_kept=not sources, files=files)


def _tried(
    plan: Plan,
    job: Job,
    data: JobData,
    extent: Check,
    found: CheckedModel,
    live: _Live | None,
    step: Callable[[str], None],
    *,
    any_cuts: bool = False,
) -> tuple[str, ...]:
    """Tries the pipelines of a plan that were not tried before, or, where `any_cuts` may follow, each unit as a stage;
    returns what was tried. Raises InvalidInput.
    """
    if extent == "none" or (found.has_tried_units(plan) if any_cuts else found.has_tried(pipelines_of(plan))):
        return ()
    if live is None:
        step("capturing the model, to try it with other cuts")
        model = tried_model(job, job.file, make_model(job, job.file, "meta"), extent, free_bytes())
        captured = capture_job(job, job.file, data)
        compared = None if model is None else model.capture(job, job.file, data, captured)
        live, any_cuts = _Live(CheckedModel(with_optimizer(captured, job), 0.0), model, compared), True
    if any_cuts:
        with suppress(InvalidInput):  # some cut, and perhaps none of this plan's
            return _try(plan, job, live, step, units=True)
    return () if found.has_tried(pipelines_of(plan)) else _try(plan, job, live, step)


def _try(plan: Plan, job: Job, live: _Live, step: Callable[[str], None], *, units: bool = False) -> tuple[str, ...]:
    """Tries the stages of a plan, or each unit as a stage; returns what was tried. Raises InvalidInput."""
    if live.tried is None or live.compared is None:
        return ()
    step("trying each stage in a fresh process")
    short = units or live.tried.blocks is not None
    weights = {**weights_of(live.tried.model), **loss_weights(make_loss(job, job.file))}
    with live.tried.told():
        try_plan(plan, job, job.file, live.compared, weights, live.check_s, short=short, places=live.tried.places)
    return units_of(plan) if short else pipelines_of(plan)


@contextmanager
def _told_what_forbids_cuts(whole_because: str) -> Iterator[None]:
    """An error that the model does not fit says what keeps it in one piece, where it is in one."""
    try:
        yield
    except NoFeasiblePlan as error:
        if not whole_because:
            raise
        raise NoFeasiblePlan(
            f"{error.message}; the model is a single unit, which no plan can cut, because {whole_because}",
            path=error.path,
            key=error.key,
            hint="change the model there, or let each node hold all of it, as a cluster of its own",
        ) from error
