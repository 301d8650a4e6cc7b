"""Whether training lasts for longer than the warm-up of its learning rate.

Told as early as it can be: before the model is captured where `stop` counts samples or epochs, before the search where
it counts minutes, by what all machines of the fleet could compute, and after it by what the plan's clusters are
expected to make: as a warning, or, where the learning rate would have nothing left to decay over, as an error.
In: a job, a fleet, costs, a plan. Out: nothing, a sentence, or an InvalidInput at the job's key.
"""

from pathlib import Path

from cluster_planner import Fleet, ModelCosts, Plan, SpanCosts, Workload, format_count
from ravnest.errors import InvalidInput, naming
from ravnest.job.config import Job
from ravnest.training.optimizer import expected_updates, lr_ratio


def check_warmup(job: Job, job_file: str | Path, samples: float | None, clusters: int) -> None:
    """Raises InvalidInput where the end of the warm-up cannot be reached, whatever the plan.

    samples: of the whole fleet, at the most, before training ends; None: not known yet. clusters: those of a plan, at
    the least. With a schedule that decays, each of them has to reach the end; one has to in any case.
    """
    if samples is None:
        return
    schedule = job.optimizer.schedule
    sharing = 1 if schedule.name == "constant" else clusters
    updates = expected_updates(samples / sharing, job.micro_batch, job.update_every)
    with naming(job_file):
        lr_ratio(schedule, 0, updates)
        if schedule.warmup_updates > updates:
            message = f"training ends after {updates} updates, in the middle of {schedule.warmup_updates} of warm-up"
            raise InvalidInput(
                message, key="optimizer.schedule.warmup_updates", hint="a shorter one, or a later `stop`"
            )


def most_samples(job: Job, fleet: Fleet, costs: ModelCosts, work: Workload) -> float | None:
    """How many samples the fleet could make, if all its machines computed all the time, before `stop.minutes` are over;
    None for a job that ends otherwise.
    """
    if job.stop.minutes is None:
        return None
    whole = max(SpanCosts(costs, work).flops(0, len(costs.units)), 1e-9)
    return 60.0 * job.stop.minutes * work.micro_batch * sum(node.flops_per_s for node in fleet.nodes) / whole


def unreached_warmup(job: Job, plan: Plan, total: int | None) -> str | None:
    """A sentence that all clusters are expected to end in the middle of their warm-up; else None. Each has its share of
    the `total` samples, or makes what is predicted where the job stops by the clock.
    """
    if job.stop.minutes is not None:
        most = 60.0 * job.stop.minutes * max(one.samples_per_s for one in plan.predicted.clusters)
    elif total is not None:
        shares = (plan.share(cluster.name) for cluster in plan.clusters)
        most = total * max(end - begin for begin, end in shares)
    else:
        return None
    updates = expected_updates(most, job.micro_batch, job.update_every)
    if updates >= (warmup := job.optimizer.schedule.warmup_updates):
        return None
    return (
        f"training is expected to end after {format_count(updates, 'update')} of a cluster, in the middle of {warmup}"
        " of warm-up (optimizer.schedule.warmup_updates): take a shorter one, or a later `stop`"
    )
