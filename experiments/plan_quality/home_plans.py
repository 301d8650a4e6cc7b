"""From a home to the planner's plan of it, and to the best plans with one cluster less and one more.

Decides how speeds follow from the times of layers, and how often rounds open. The planner does the rest: groups, order,
cuts, windows, rings and the prediction.
"""

from dataclasses import replace
from pathlib import Path

from cluster_planner import Fleet, Link, Node, Plan, SpanCosts, Spare, averaging_per_s, make_plan, validate
from cluster_planner.search.candidates import Assembler, Candidate
from cluster_planner.search.estimates import Group
from cluster_planner.search.partitions import best_partitions
from experiments.fidelity.plans import BITS_PER_MBIT, MEMORY_BYTES, paced_job, paced_units
from experiments.fidelity.sites import LAYERS
from experiments.harness.paced_model import MICRO_BATCH
from experiments.plan_quality.homes import Home
from ravnest.planning.workload import workload

JOB_FILE = Path(__file__).parents[1] / "harness" / "paced_model.py"
"""Only its folder counts: the model's module is in it."""
FAST_LINK_BYTES_PER_S = 1e9 / 8
"""No pair is slower than its ends."""


def plan_of(home: Home) -> Plan:
    """As `ravnest plan` makes it."""
    at_most = sum(MICRO_BATCH / (LAYERS * machine.layer_s) for machine in home.machines)
    job = paced_job(home.update_every, home.max_staleness, max(1, round(at_most * home.round_every_s)))
    costs, work = paced_units(JOB_FILE).costs, workload(job)
    fleet = _fleet(home, SpanCosts(costs, work))
    return make_plan(
        fleet, costs, work, job=job.model_dump(mode="json"), job_file=str(JOB_FILE), min_stages=home.least_stages
    )


def with_clusters(plan: Plan, clusters: int, least_stages: int) -> Plan | None:
    """The best plan of the same fleet with so many clusters; None where there is none.

    All divisions of the nodes are compared by the planner's own pipelines, and the best ones worked out as its search
    works out what it finds, twice: the second time with the averaging that the first has shown.
    """
    fleet, work = plan.fleet, plan.workload
    spans = SpanCosts(plan.costs, work)
    assembler = Assembler(fleet, spans, least_stages)
    rate = plan.predicted.samples_per_s
    best: Candidate | None = None
    for _ in range(2):
        load = float(f"{averaging_per_s(clusters, rate, work):.2g}")

        def value_of(group: Group, load: float = load) -> float:
            found = assembler.pipeline(tuple(fleet.names[i] for i in group), load)
            return 0.0 if found is None else found.value

        for groups in best_partitions(range(len(fleet.names)), clusters, least_stages, value_of):
            found = assembler.candidate([tuple(fleet.names[i] for i in group) for group in groups], rate)
            if found is not None and (best is None or found.objective > best.objective):
                best = found
        if best is not None:
            rate = best.forecast.prediction.samples_per_s
    if best is None:
        return None
    predicted = replace(best.forecast.prediction, advice="none was asked for")
    runs = {stage.node for cluster in best.clusters for stage in cluster.stages}
    spares = tuple(Spare(name, "no cluster was better with it") for name in fleet.names if name not in runs)
    other = replace(plan, clusters=best.clusters, rings=best.rings, spares=spares, predicted=predicted)
    validate(other)
    return other


def shortest_stage_s(plan: Plan) -> float:
    """The least compute of any stage per micro-batch: this machine has to keep up with it."""
    return min(stage.compute_s for cluster in plan.predicted.clusters for stage in cluster.stages)


def _fleet(home: Home, spans: SpanCosts) -> Fleet:
    whole = 3 * spans.forward_flops(0, spans.count)
    nodes = tuple(
        Node(
            name=machine.name,
            flops_per_s=whole / (LAYERS * machine.layer_s),
            memory_bytes=MEMORY_BYTES,
            up_bytes_per_s=machine.up_mbps * BITS_PER_MBIT / 8,
            down_bytes_per_s=machine.down_mbps * BITS_PER_MBIT / 8,
        )
        for machine in home.machines
    )
    links = tuple(
        Link(nodes[a].name, nodes[b].name, ms / 1e3, FAST_LINK_BYTES_PER_S)
        for (a, b), ms in sorted(home.one_way_ms.items())
    )
    return Fleet(nodes, links, ())
