from collections.abc import Callable

from cluster_planner.inputs.fleet import Fleet
from cluster_planner.inputs.model_costs import ModelCosts, Workload
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.search.candidates import Assembler, averaging_limits_of


def test_each_group_becomes_a_cluster_named_by_its_rank(
    home: Fleet, gpt: ModelCosts, make_workload: Callable[..., Workload]
) -> None:
    spans = SpanCosts(gpt, make_workload())
    assembler = Assembler(home, spans, 2)
    found = assembler.candidate([home.names[:3], home.names[3:]])
    assert found is not None
    assert [cluster.name for cluster in found.clusters] == ["c0", "c1"]
    rates = [one.samples_per_s for one in found.forecast.prediction.clusters]
    assert rates == sorted(rates, reverse=True)
    assert {stage.node for cluster in found.clusters for stage in cluster.stages} <= set(home.names)
    limits = averaging_limits_of(found)
    assert limits.samples_per_s == found.forecast.prediction.samples_per_s
    assert limits.hop_s > 0


def test_a_group_of_too_few_nodes_makes_no_plan(
    home: Fleet, gpt: ModelCosts, make_workload: Callable[..., Workload]
) -> None:
    spans = SpanCosts(gpt, make_workload())
    assert Assembler(home, spans, 2).candidate([home.names[:1]]) is None
