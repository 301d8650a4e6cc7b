from collections.abc import Collection
from dataclasses import replace

import pytest

from cluster_planner import NoFeasiblePlan, Plan
from experiments.churn.baseline import best_rates, knowable_rates, samples_of
from experiments.churn.traces import started, stay_s
from ravnest.simulator import NodeChange
from tests.unit.ravnest.simulator.test_fleet import home_plan

PLAN = home_plan()


def a_sample_for_each(plan: Plan, alive: Collection[str]) -> Plan:
    """One sample/s for each node, and none for fewer than two."""
    if len(alive) < 2:
        raise NoFeasiblePlan("too few", key="nodes")
    return replace(plan, predicted=replace(plan.predicted, samples_per_s=float(len(alive))))


def changes(*told: tuple[float, str, str]) -> list[NodeChange]:
    return [NodeChange(at_s, node, kind) for at_s, kind, node in told]  # type: ignore[arg-type]


def test_every_change_counts_from_its_moment_on() -> None:
    others = [(0.0, "back", name) for name in ("n0", "n1", "n2")]
    away = [(1000.0, "back", name) for name in ("n3", "n4", "n5")]
    told = changes(*others, (10.0, "gone", "n0"), (20.0, "gone", "n1"), (30.0, "back", "n0"), *away)
    rates = best_rates(PLAN, told, 50.0, a_sample_for_each)
    assert rates == [(0.0, 3.0, 3), (10.0, 2.0, 2), (20.0, 0.0, 1), (30.0, 2.0, 2)]
    assert samples_of(rates, 50.0) == pytest.approx(30.0 + 20.0 + 0.0 + 40.0)


def test_nobody_knows_at_once_who_has_gone_nor_uses_at_once_who_has_come() -> None:
    nodes = [stage.node for cluster in PLAN.clusters for stage in cluster.stages]
    told = [NodeChange(0.0, name, "back") for name in nodes[1:]]
    told += [NodeChange(100.0, nodes[0], "back"), NodeChange(200.0, nodes[0], "gone", 20.0)]
    first, second = (cluster.samples_per_s for cluster in PLAN.predicted.clusters)
    few, all_of_them = 1.0, PLAN.predicted.samples_per_s

    def planner(plan: Plan, alive: Collection[str]) -> Plan:
        rate = all_of_them if len(alive) == len(nodes) else few
        return replace(plan, predicted=replace(plan.predicted, samples_per_s=rate))

    rates = knowable_rates(PLAN, told, 300.0, planner, 15.0)
    left = second if nodes[0] in [stage.node for stage in PLAN.clusters[0].stages] else first
    by_moment = {at_s: rate for at_s, rate, _ in rates}
    assert by_moment[0.0] == few
    assert 115.0 in by_moment, "its process has started"
    assert by_moment[115.0] == all_of_them
    assert by_moment[200.0] == left, "the cluster whose node has gone makes nothing"
    assert by_moment[220.0] == few
    assert samples_of(rates, 300.0) <= samples_of(best_rates(PLAN, told, 300.0, planner), 300.0)


def test_a_trace_starts_when_enough_nodes_are_there() -> None:
    told = changes((5.0, "back", "a"), (6.0, "back", "b"), (7.0, "gone", "a"), (9.0, "back", "c"), (12.0, "gone", "b"))
    assert [(each.at_s, each.kind, each.node) for each in started(told, 2)] == [
        (0.0, "back", "a"),
        (0.0, "back", "b"),
        (1.0, "gone", "a"),
        (3.0, "back", "c"),
        (6.0, "gone", "b"),
    ]


def test_how_long_a_node_stays_counts_those_that_are_still_there() -> None:
    told = changes((0.0, "back", "a"), (0.0, "back", "b"), (10.0, "gone", "a"))
    assert stay_s(told) == 20.0


def test_all_that_come_in_the_moment_at_which_enough_are_there_are_there_at_first() -> None:
    told = [NodeChange(5.0, name, "back") for name in "abcd"] + [NodeChange(9.0, "e", "back")]
    first = started(told, 2)
    assert [(each.at_s, each.node) for each in first] == [*((0.0, name) for name in "abcd"), (4.0, "e")]
