"""What the page of a plan shows of it, as plain data. Pure.

In: a plan as it was given, and as it is after nodes were exchanged. Out: the document that the page draws.
"""

from cluster_planner import Plan, SpanCosts


def plan_document(given: Plan, now: Plan) -> dict[str, object]:
    """The plan as it is now, with its figures beside those of the plan that was given. Bytes, seconds, samples/s."""
    spans = SpanCosts(now.costs, now.workload)
    clusters = []
    for cluster, predicted in zip(now.clusters, now.predicted.clusters, strict=True):
        stages = [
            {
                "node": stage.node,
                "region": now.fleet.node(stage.node).region,
                "units": list(stage.units),
                "recomputes": stage.recomputes,
                "parameter_bytes": spans.parameter_bytes(*stage.units),
                "memory_bytes": figures.memory_bytes + now.fleet.node(stage.node).beyond_bytes,
                "has_bytes": now.fleet.node(stage.node).memory_bytes,
                "busy": predicted.busy(figures, now.workload.micro_batch),
            }
            for stage, figures in zip(cluster.stages, predicted.stages, strict=True)
        ]
        clusters.append(
            {
                "name": cluster.name,
                "samples_per_s": predicted.samples_per_s,
                "window": cluster.window,
                "bottleneck": predicted.bottleneck,
                "stages": stages,
            }
        )
    return {
        "samples_per_s": {"given": given.predicted.samples_per_s, "now": now.predicted.samples_per_s},
        "worth": {"given": given.predicted.objective, "now": now.predicted.objective},
        "averaging_s": {"given": given.predicted.averaging_s, "now": now.predicted.averaging_s},
        "bottleneck": now.predicted.bottleneck,
        "clusters": clusters,
        "spares": [{"node": spare.node, "reason": spare.reason} for spare in now.spares],
    }
