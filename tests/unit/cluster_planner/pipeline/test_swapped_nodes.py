"""Nodes that change places by hand make a plan that is checked like one from a file."""

from dataclasses import replace

import pytest

from cluster_planner import (
    Constraints,
    InvalidInput,
    Plan,
    SpanCosts,
    Spare,
    predicted_again,
    validate,
    with_swapped_nodes,
)
from cluster_planner.rings import finer_rings
from tests.unit.ravnest.simulator.test_fleet import home_plan

PLAN = predicted_again(home_plan())
FIRST, SECOND = (stage.node for stage in PLAN.clusters[0].stages[:2])
OTHER = PLAN.clusters[1].stages[0].node


def nodes(plan: Plan) -> list[list[str]]:
    return [[stage.node for stage in cluster.stages] for cluster in plan.clusters]


def test_no_exchange_changes_nothing_and_two_equal_ones_neither() -> None:
    assert with_swapped_nodes(PLAN, []) is PLAN
    again = with_swapped_nodes(PLAN, [(FIRST, OTHER), (FIRST, OTHER)])
    assert nodes(again) == nodes(PLAN)
    assert again.predicted.samples_per_s == pytest.approx(PLAN.predicted.samples_per_s)


def test_two_nodes_change_places_and_the_prediction_is_that_of_the_new_plan() -> None:
    made = with_swapped_nodes(PLAN, [(FIRST, OTHER)])
    assert made.clusters[0].stages[0].node == OTHER
    assert made.clusters[1].stages[0].node == FIRST
    assert [stage.units for stage in made.clusters[0].stages] == [stage.units for stage in PLAN.clusters[0].stages]
    assert predicted_again(made).predicted.samples_per_s == pytest.approx(made.predicted.samples_per_s)
    assert made.predicted.samples_per_s != PLAN.predicted.samples_per_s
    validate(made)


def test_exchanges_follow_one_another() -> None:
    made = with_swapped_nodes(PLAN, [(FIRST, SECOND), (SECOND, OTHER)])
    assert nodes(made)[0][:2] == [OTHER, FIRST]
    assert nodes(made)[1][0] == SECOND


def test_a_spare_takes_a_place_and_who_had_it_is_a_spare() -> None:
    spare = replace(PLAN.fleet.nodes[0], name="attic")
    with_spare = replace(
        PLAN,
        fleet=replace(PLAN.fleet, nodes=(*PLAN.fleet.nodes, spare)),
        spares=(*PLAN.spares, Spare("attic", "no cluster gains")),
    )
    made = with_swapped_nodes(with_spare, [("attic", FIRST)])
    assert made.clusters[0].stages[0].node == "attic"
    assert Spare(FIRST, "taken out by hand") in made.spares


def test_finer_rings_and_what_warm_spares_are_sent_stay() -> None:
    spare = replace(PLAN.fleet.nodes[0], name="attic")
    fleet = replace(PLAN.fleet, nodes=(*PLAN.fleet.nodes, spare))
    spares = (*PLAN.spares, Spare("attic", "no cluster gains", ((PLAN.clusters[0].name, 0),)))
    rings = finer_rings(PLAN.rings, SpanCosts(PLAN.costs, PLAN.workload))
    assert len(rings) > len(PLAN.rings)
    plan = predicted_again(replace(PLAN, fleet=fleet, spares=spares, rings=rings))
    made = with_swapped_nodes(plan, [(FIRST, OTHER)])
    assert [ring.units for ring in made.rings] == [ring.units for ring in rings]
    assert predicted_again(made) is made
    assert with_swapped_nodes(made, [(FIRST, OTHER)]).predicted.objective == pytest.approx(plan.predicted.objective)


def test_what_cannot_run_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no node 'nobody'"):
        with_swapped_nodes(PLAN, [(FIRST, "nobody")])
    small = replace(
        PLAN,
        fleet=replace(
            PLAN.fleet,
            nodes=tuple(replace(n, memory_bytes=1000) if n.name == OTHER else n for n in PLAN.fleet.nodes),
        ),
    )
    with pytest.raises(InvalidInput, match=rf"nodes\[{OTHER}\]\.memory_gb"):
        with_swapped_nodes(small, [(FIRST, OTHER)])
    with pytest.raises(InvalidInput, match="at most 1000"):
        with_swapped_nodes(PLAN, [(FIRST, OTHER)] * 1001)


def test_constraints_hold_for_exchanges_too() -> None:
    rules = Constraints(forbid=((OTHER, SECOND),))
    ruled = replace(PLAN, fleet=replace(PLAN.fleet, constraints=rules))
    with pytest.raises(InvalidInput, match="which constraints keep apart"):
        with_swapped_nodes(ruled, [(FIRST, OTHER)])
