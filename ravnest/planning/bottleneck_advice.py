"""Whether a plan would be better with bottlenecks in its model, and which: advice, where bytes across cuts limit it.

A model with bottlenecks is another one and learns less, so no search puts any in (decision 125). They are tried here,
beside the shortest form of `wire`, which costs less in learning: at the cuts of the plan's longest pipeline, or nearest
to them where the output of one module is all that crosses, a quarter of its features is left. The model is captured so
and planned for anew, and a bottleneck in which that plan cuts nowhere is left out again, since it would cost learning
for nothing. So a plan of the job with what is advised makes what the advice says (decision 252).

In: a plan, its job and data, and what crosses each unit's end. Out: the plan, whose advice says so where that gains.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from cluster_planner import MOST_NODES_TO_PLAN_ANEW, Plan, Workload, format_rate, make_plan, predicted_again
from ravnest.errors import RavnestError
from ravnest.job.config import Job
from ravnest.job.experts_table import experts_stand_in
from ravnest.job.materials import JobData, capture_job
from ravnest.planning.workload import with_optimizer
from ravnest.splitting.bottlenecks import CHILD, DOWN, BottleneckConfig
from ravnest.splitting.module_outputs import ModuleOutput, module_outputs
from ravnest.training.precision import bytes_per_float32_byte

PART = 4
"""Of so many features one is left: what experiments/wire has measured."""

PRICE = (
    "one of four features at three cuts ended 8 % higher in held-out loss as int4 in experiments/wire, 3 % as float32"
)

SHORTEST: Literal["int4"] = "int4"
"""The shortest form of `wire`: it ended less than 1 % higher there."""

NOTICED = 0.1
"""A smaller gain of what the plan is worth does not make up for what the model learns less."""


def with_bottlenecks_advised(plan: Plan, job: Job, data: JobData, outputs: Sequence[ModuleOutput | None]) -> Plan:
    """Return the plan, its advice followed by the bottlenecks that would make it better, where bytes limit it.

    `outputs`: what crosses the end of each unit. Of larger fleets than are planned anew for advice nothing is tried.
    """
    if len(plan.fleet.nodes) > MOST_NODES_TO_PLAN_ANEW:
        return plan
    longest = max(plan.clusters, key=lambda cluster: len(cluster.stages))
    near = (_nearest(outputs, stage.units[1] - 1) for stage in longest.stages[:-1])
    places = {one.name: _narrowed(one) for one in near if one is not None}
    shortest = predicted_again(replace(plan, workload=_with_wire(plan.workload, bytes_per_float32_byte(SHORTEST))))
    if not places or not _bytes_limit(shortest):
        return plan
    try:
        made, used = _planned(shortest, job, data, places)
        while used and used < places.keys():
            places = {name: one for name, one in places.items() if name in used}
            made, used = _planned(shortest, job, data, places)
    except RavnestError:  # a module of which the output cannot be narrowed, or a model that cannot be cut so
        return plan
    if not used or made.predicted.objective <= shortest.predicted.objective * (1 + NOTICED):
        return plan
    keys = (one.model_dump(exclude_defaults=True).items() for one in places.values())
    stated = ", ".join(f"{{{', '.join(f'{key}: {value}' for key, value in one)}}}" for one in keys)
    form = "" if shortest.workload == plan.workload else f"{SHORTEST} as wire and "
    rate, worth = format_rate(made.predicted.samples_per_s), format_rate(made.predicted.objective)
    said = (
        f"; with {form}model.bottlenecks: [{stated}], planned anew, {rate} samples/s (worth {worth}), but the model"
        f" learns less: {PRICE}"
    )
    return replace(plan, predicted=replace(plan.predicted, advice=plan.predicted.advice + said))


def _nearest(outputs: Sequence[ModuleOutput | None], unit: int) -> ModuleOutput | None:
    """Return what crosses the end of this unit, or of the nearest one whose end can be narrowed; None: of none."""
    able = [(abs(at - unit), at, one) for at, one in enumerate(outputs) if one is not None and _may_be_narrowed(one)]
    return min(able, key=lambda each: each[:2])[2] if able else None


def _may_be_narrowed(one: ModuleOutput) -> bool:
    return one.features >= PART and CHILD not in one.name.split(".")


def _narrowed(one: ModuleOutput) -> BottleneckConfig:
    return BottleneckConfig(after=one.name, features=one.features, width=one.features // PART, dim=one.dim)


def _bytes_limit(plan: Plan) -> bool:
    """Whether the same clusters would be worth noticeably more, were what crosses all cuts as much shorter."""
    work = plan.workload
    shorter = _with_wire(work, min(work.activation_wire_ratio, work.gradient_wire_ratio) / PART)
    made = predicted_again(replace(plan, workload=shorter))
    return made.predicted.objective > plan.predicted.objective * (1 + NOTICED)


def _with_wire(work: Workload, ratio: float) -> Workload:
    """Return the workload with what crosses cuts in a form of this ratio, as far as it was longer."""
    forth, back = min(work.activation_wire_ratio, ratio), min(work.gradient_wire_ratio, ratio)
    return replace(work, activation_wire_ratio=forth, gradient_wire_ratio=back)


def _planned(plan: Plan, job: Job, data: JobData, places: dict[str, BottleneckConfig]) -> tuple[Plan, set[str]]:
    """Return the plan of the job with these bottlenecks too, and those of them in which it cuts."""
    more = (*job.model.bottlenecks, *places.values())
    job = job.model_copy(update={"model": job.model.model_copy(update={"bottlenecks": more})})
    with experts_stand_in(job.experts):
        captured = capture_job(job, job.file, data)
    made = make_plan(
        plan.fleet,
        with_optimizer(captured, job).with_traffic(plan.fleet.flops_per_byte),
        plan.workload,
        job=plan.job,
        job_file=plan.job_file,
        seed=plan.seed,
        min_stages=plan.min_stages,
    )
    outputs = module_outputs(captured)
    cut = (outputs[stage.units[1] - 1] for cluster in made.clusters for stage in cluster.stages[:-1])
    narrow = {one.name.removesuffix(f".{CHILD}.{DOWN}") for one in cut if one is not None}
    return made, narrow & places.keys()
