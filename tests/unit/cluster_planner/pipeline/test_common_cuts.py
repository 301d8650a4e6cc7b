from collections.abc import Callable

import pytest

from cluster_planner.inputs.fleet import Fleet, Node
from cluster_planner.inputs.links import Link
from cluster_planner.inputs.model_costs import ModelCosts, Workload
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.pipeline.common_cuts import common_cuts, fast_cuts
from cluster_planner.plan import Cluster
from cluster_planner.predict.plan_worths import PlanWorths

Make = Callable[..., Node]


@pytest.fixture
def fleet(make_node: Make) -> Fleet:
    speeds = {"a": 3e10, "b": 1e10, "c": 2e10, "d": 2e10}
    return Fleet(tuple(make_node(name, flops_per_s=speed, up_bytes_per_s=1e9) for name, speed in speeds.items()))


def test_all_pipelines_have_the_cuts_that_the_slowest_nodes_need(
    fleet: Fleet, make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    spans = SpanCosts(make_model(8), make_workload())
    (found, *_) = common_cuts(fleet, spans, [("a", "b"), ("c", "d")])
    assert [[stage.node for stage in one.stages] for one in found] == [["a", "b"], ["c", "d"]]
    cuts = {tuple(stage.units for stage in one.stages) for one in found}
    assert cuts == {((0, 5), (5, 8))}  # of 2e10 and 1e10, the slowest at each place: 5 : 3 takes 3 units' time


def test_where_rounds_hold_a_stage_up_it_holds_less_of_the_model(
    make_node: Make, make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    """Both rings average over a slow link of their own, the first one over a slower one."""
    fleet = Fleet(
        tuple(make_node(name, up_bytes_per_s=1e9) for name in "abcd"),
        (Link("a", "c", 1e-3, 1e6), Link("b", "d", 1e-3, 4e6)),
    )
    spans = SpanCosts(make_model(10, parameter_bytes=10**7), make_workload(average_every=64))
    plain, with_rounds = common_cuts(fleet, spans, [("a", "b"), ("c", "d")])
    assert plain[0].stages[0].units == (0, 5)
    assert {tuple(stage.units for stage in one.stages) for one in with_rounds} == {((0, 2), (2, 10))}
    clusters = [[Cluster("", one.window, one.stages) for one in made] for made in (plain, with_rounds)]
    before, after = map(PlanWorths(fleet, spans).of, clusters)
    assert after > 2 * before


def test_one_pipeline_is_cut_for_its_own_nodes(
    fleet: Fleet, make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    spans = SpanCosts(make_model(8), make_workload())
    found = fast_cuts(fleet, spans, ("a", "b"))
    assert found is not None
    assert [stage.units for stage in found.stages] == [(0, 6), (6, 8)]
    backwards = fast_cuts(fleet, spans, ("b", "a"))
    assert backwards is not None
    assert [stage.node for stage in backwards.stages] == ["b", "a"]


def test_without_memory_or_units_there_are_no_cuts(
    make_node: Make, make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    fleet = Fleet((make_node("a"), make_node("b", memory_bytes=1000), make_node("c")))
    spans = SpanCosts(make_model(2), make_workload())
    assert fast_cuts(fleet, spans, ("a", "b")) is None
    assert list(common_cuts(fleet, spans, [("a", "c"), ("a", "b")])) == []
    assert fast_cuts(fleet, spans, ("a", "c", "b")) is None


def test_where_memory_is_short_stages_recompute(
    make_node: Make, make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    costs = make_model(4, saved_bytes=10**8, parameter_bytes=1000)
    fleet = Fleet((make_node("a", memory_bytes=12 * 10**8), make_node("b", memory_bytes=12 * 10**8)))
    assert fast_cuts(fleet, SpanCosts(costs, make_workload()), ("a", "b")) is not None
    keeps, again = (
        fast_cuts(fleet, SpanCosts(costs, make_workload(activation_checkpointing=mode)), ("a", "b"))
        for mode in ("never", "auto")
    )
    assert keeps is not None
    assert again is not None
    assert again.value >= keeps.value
    assert not any(stage.recomputes for stage in keeps.stages)
