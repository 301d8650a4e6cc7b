"""Clusters that move to spares, leave with notice, and begin again, by the machines that decide in a run."""

from collections.abc import Collection
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cluster_planner import Node, NoFeasiblePlan, Plan, Spare, hours_from
from ravnest.errors import InvalidInput
from ravnest.recovery import plan_for
from ravnest.simulator import Death, Join, Leave, NodeChange, Scenario, simulate
from ravnest.simulator.simulated_run import SimulatedRun
from tests.unit.ravnest.simulator.test_fleet import home_plan

HOME = home_plan()
FIRST, SECOND = (cluster.stages[0].node for cluster in HOME.clusters)


def with_spare(plan: Plan, **changes: object) -> Plan:
    values = {"flops_per_s": 60e9, "memory_bytes": 10**9, "up_bytes_per_s": 2.5e7, "down_bytes_per_s": 6e7}
    spare = Node(name="spare", region="iad", **{**values, **changes})
    return replace(plan, fleet=replace(plan.fleet, nodes=(*plan.fleet.nodes, spare)), spares=(Spare("spare", ""),))


SPARED = with_spare(HOME)
NEW = [replace(node, name=f"new{index}") for index, node in enumerate(HOME.fleet.nodes[:2])]
WITH_NEW = replace(
    HOME,
    fleet=replace(HOME.fleet, nodes=(*HOME.fleet.nodes, *NEW)),
    spares=(*HOME.spares, *(Spare(node.name, "") for node in NEW)),
)
"""Two nodes more, which hold the model together."""


def kept(run: SimulatedRun) -> float:
    return run.goodput_per_s * run.end_s


def test_a_spare_takes_the_place_of_a_node_that_is_gone_for_good() -> None:
    result = simulate(SPARED, Scenario(deaths=(Death(FIRST, 50.0, 1.0),), restart_s=5.0), seconds=200.0)
    [lost] = result.clusters_lost
    assert lost.back_s is not None
    assert lost.nodes[0] == "spare"
    assert {stage.node for stage in result.stages} >= {"spare"}
    assert result.samples == pytest.approx(kept(result))


def test_where_no_spare_is_large_enough_the_cluster_is_cut_anew_for_the_nodes_it_has_left() -> None:
    small = with_spare(HOME, memory_bytes=10**6)
    result = simulate(small, Scenario(deaths=(Death(FIRST, 50.0, 1.0),)), seconds=200.0)
    [lost] = result.clusters_lost
    assert lost.back_s is not None
    left = {stage.node for stage in HOME.cluster(lost.cluster).stages} - {FIRST}
    assert set(lost.nodes) <= left
    assert result.samples == pytest.approx(kept(result))
    assert {stage.name for stage in result.stages if stage.name.startswith(lost.cluster)} == {
        f"{lost.cluster}.s{index}" for index in range(len(lost.nodes))
    }


@pytest.mark.parametrize(("comes_s", "taken"), [(49.0, True), (120.0, False)])
def test_a_spare_that_joins_is_taken_by_whoever_is_lost_later(comes_s: float, taken: bool) -> None:
    scenario = Scenario(deaths=(Death(FIRST, 50.0, 1.0),), joins=(Join("spare", comes_s),), restart_s=5.0)
    [lost] = simulate(SPARED, scenario, seconds=200.0).clusters_lost
    assert lost.back_s is not None
    assert ("spare" in lost.nodes) == taken


def test_with_notice_nothing_is_lost() -> None:
    result = simulate(HOME, Scenario(leaves=(Leave(FIRST, 50.0, 30.0, back_after_s=60.0),)), seconds=250.0)
    [lost] = result.clusters_lost
    assert lost.with_notice
    assert lost.samples == 0
    assert 50.0 < lost.lost_s < 80.0
    assert lost.back_s is not None
    assert FIRST not in lost.nodes


def test_notice_that_is_too_short_loses_what_was_not_averaged() -> None:
    [lost] = simulate(HOME, Scenario(leaves=(Leave(FIRST, 50.0, 0.01),)), seconds=100.0).clusters_lost
    assert lost.samples > 0
    assert not lost.with_notice


def test_the_only_cluster_that_trains_does_not_leave() -> None:
    result = simulate(HOME, Scenario(leaves=(Leave(FIRST, 50.0, 20.0), Leave(SECOND, 50.0, 20.0))), seconds=65.0)
    assert len(result.clusters_lost) == 1
    assert result.end_s > 65.0


def test_a_run_without_clusters_begins_again_for_the_nodes_that_are_there() -> None:
    deaths = (Death(FIRST, 60.0, 1.0), Death(SECOND, 64.0, 1.0, back_after_s=500.0))
    result = simulate(HOME, Scenario(deaths=deaths, restart_s=5.0), seconds=200.0)
    [again] = result.begun_anew
    assert again.planned_anew
    assert again.lost_s == 65.0
    assert again.began_s == 65.0 + 2.0 + 5.0
    assert not {FIRST, SECOND} & {stage.node for stage in result.stages}
    assert result.samples == pytest.approx(kept(result))
    assert result.end_s > 200.0


def test_a_run_that_cannot_train_on_the_nodes_there_waits_for_others() -> None:
    nodes = [stage.node for cluster in HOME.clusters for stage in cluster.stages]
    deaths = tuple(Death(node, 60.0, 1.0, back_after_s=100.0) for node in nodes)
    result = simulate(HOME, Scenario(deaths=deaths, restart_s=5.0), seconds=200.0)
    [again] = result.begun_anew
    assert not again.planned_anew
    assert again.began_s == 165.0
    assert again.samples == 0


def test_a_run_goes_on_however_often_all_its_nodes_go_before_it_has_a_checkpoint() -> None:
    nodes = [stage.node for cluster in HOME.clusters for stage in cluster.stages]
    changes = [
        NodeChange(40.0 * turn + after_s, node, kind, noticed_after_s=5.0)
        for turn in range(7)
        for after_s, kind in ((0.0, "back"), (12.0, "gone"))
        for node in nodes
    ]
    result = simulate(HOME, Scenario(trace=tuple(changes), restart_s=5.0), seconds=400.0)
    assert [each.samples for each in result.begun_anew] == [0] * 6
    assert result.samples == 0
    assert result.end_s == 6 * 40.0 + 12.0 + 5.0


def test_hours_are_acted_out_by_the_clock() -> None:
    evening = tuple(
        replace(node, hours=hours_from("18-19")) if node.name == FIRST else node for node in HOME.fleet.nodes
    )
    plan = replace(HOME, fleet=replace(HOME.fleet, nodes=evening))
    result = simulate(plan, Scenario(begins_at_hour=18.95), seconds=200.0)
    [lost] = result.clusters_lost
    assert lost.with_notice
    assert 60.0 <= lost.lost_s < 100.0  # two minutes before 19:00, and until it has drained and was averaged
    assert FIRST not in lost.nodes
    assert simulate(plan, Scenario(), seconds=100.0).clusters_lost == ()


def test_a_trace_brings_and_takes_nodes() -> None:
    trace = [NodeChange(0.0, name, "back") for name in HOME.fleet.names]
    trace += [NodeChange(49.0, "spare", "back"), NodeChange(50.0, FIRST, "gone", 1.0)]
    [lost] = simulate(SPARED, Scenario(trace=tuple(trace), restart_s=5.0), seconds=200.0).clusters_lost
    assert "spare" in lost.nodes


def test_nodes_that_come_and_hold_the_model_together_are_a_further_cluster() -> None:
    """As in a real run: nobody leaves for it, and it trains from the anchor of today."""
    plan, joins = WITH_NEW, tuple(Join(node.name, 40.0) for node in NEW)
    jittery = Scenario(joins=joins, restart_s=5.0, compute_jitter=0.1)
    result = simulate(plan, jittery, seconds=200.0)
    assert result.clusters_lost == ()
    assert {stage.node for stage in result.stages if stage.name.startswith("joined0.")} <= {"new0", "new1"}
    assert result.clusters["joined0"] > 0
    assert all(stage.late_s for stage in result.stages)
    assert result.samples == pytest.approx(kept(result))
    assert result.samples > 1.1 * simulate(plan, Scenario(trace=()), seconds=200.0).samples


def test_a_trace_without_enough_nodes_at_the_start_is_refused() -> None:
    late = tuple(NodeChange(5.0, name, "back") for name in HOME.fleet.names)
    with pytest.raises(InvalidInput, match="there at the start"):
        simulate(HOME, Scenario(trace=late), seconds=10.0)


NAMES = sorted(SPARED.fleet.names)
CHANGES = st.one_of(
    st.builds(
        Death,
        st.sampled_from(NAMES),
        st.floats(0.0, 60.0),
        st.sampled_from([0.0, 0.2, 5.0]),
        st.sampled_from([None, 0.0, 3.0, 8.0, 30.0]),
    ),
    st.builds(
        Leave,
        st.sampled_from(NAMES),
        st.floats(0.0, 60.0),
        st.sampled_from([0.0, 1.0, 10.0]),
        st.sampled_from([None, 5.0]),
    ),
    st.builds(Join, st.sampled_from(NAMES), st.floats(0.0, 60.0)),
)


_PLANNED: dict[frozenset[str], Plan | None] = {}


def planned_once(plan: Plan, alive: Collection[str]) -> Plan:
    """Plans once for each set of nodes, since that takes most of the time of a short simulation."""
    nodes = frozenset(alive)
    if nodes not in _PLANNED:
        try:
            _PLANNED[nodes] = plan_for(SPARED, alive)
        except NoFeasiblePlan:
            _PLANNED[nodes] = None
    found = _PLANNED[nodes]
    if found is None:
        raise NoFeasiblePlan("the nodes cannot hold the model", key="nodes")
    return found


@settings(max_examples=25, deadline=None)
@example(
    [Death("n0", 0.0, 5.0, 3.0), Death("n0", 52.6, 5.0), *(Death(name, 53.0, 0.0) for name in ("n2", "n3", "n4"))],
    0.0,
    0,
    False,
)  # it begins again, and drains with its first update
@example([Death("n0", 4.9, 5.0), Leave("n4", 0.0, 10.0)], 0.0, 0, False)  # who took over what n4's cluster made is lost
@given(st.lists(CHANGES, max_size=7), st.sampled_from([0.0, 1.0, 6.0]), st.integers(0, 9), st.booleans())
def test_every_history_ends_and_no_sample_counts_twice(
    changes: list[Death | Leave | Join], restart_s: float, seed: int, plans_anew: bool
) -> None:
    joins = tuple(each for each in changes if isinstance(each, Join))
    wanted = Scenario(
        compute_jitter=0.3,
        deaths=tuple(each for each in changes if isinstance(each, Death)),
        leaves=tuple(each for each in changes if isinstance(each, Leave)),
        joins=tuple(each for each in joins if each.node == "spare"),
        restart_s=restart_s,
        plans_anew=plans_anew,
    )
    result = simulate(SPARED, wanted, seconds=60.0, seed=seed, planner=planned_once)
    assert all(each.samples >= 0 for each in result.clusters_lost)
    assert all(each.samples == 0 for each in result.clusters_lost if each.with_notice)
    assert all(each.samples >= 0 for each in result.begun_anew)
    assert kept(result) == pytest.approx(result.samples)
    assert result.staleness.keys() <= {0, 1}


SMALL = replace(
    HOME,
    fleet=replace(HOME.fleet, nodes=tuple(replace(node, memory_bytes=105 * 10**6) for node in HOME.fleet.nodes)),
    job={"evaluate_every": 10**9},
)
"""No node can hold the model, and only the first round is saved unless something else asks for it."""
HERE, COMES = SMALL.fleet.names[:2], SMALL.fleet.names[2]


def few(comes_s: float, *more: NodeChange) -> tuple[NodeChange, ...]:
    """Two nodes are there, a third one comes, and no other ever does."""
    first = [NodeChange(0.0, name, "back") for name in HERE]
    never = [NodeChange(1e6, name, "back") for name in SMALL.fleet.names[3:]]
    return (*first, NodeChange(comes_s, COMES, "back"), *more, *never)


def test_a_run_is_planned_anew_for_nodes_that_came_where_somebody_does_so() -> None:
    """The only cluster that trains does not leave for the node that comes, which is too small for one of its own."""
    left = simulate(SMALL, Scenario(trace=few(60.0), restart_s=5.0), seconds=300.0)
    assert {stage.node for stage in left.stages} == set(HERE)
    result = simulate(SMALL, Scenario(trace=few(60.0), restart_s=5.0, plans_anew=True), seconds=300.0)
    [again] = result.begun_anew
    assert again.on_purpose
    assert again.samples == 0
    assert again.lost_s > 60.0
    assert COMES in {stage.node for stage in result.stages}
    assert result.samples == pytest.approx(kept(result))
    assert result.samples > left.samples
    gone = NodeChange(again.lost_s - 0.05, HERE[1], "gone", 1.0)  # while the cluster drains
    other = simulate(SMALL, Scenario(trace=few(60.0, gone), restart_s=5.0, plans_anew=True), seconds=300.0)
    assert other.begun_anew[0].lost_s > gone.at_s
    assert HERE[1] not in {stage.node for stage in other.stages}


def test_the_only_cluster_is_saved_when_its_node_gives_notice() -> None:
    notice, gone = NodeChange(80.0, HERE[0], "notice"), NodeChange(90.0, HERE[0], "gone", 0.0)
    result = simulate(SMALL, Scenario(trace=few(95.0, notice, gone), restart_s=5.0), seconds=120.0)
    [again] = result.begun_anew
    assert again.lost_s == 90.0
    assert again.samples == 0, "no round was committed after the one that was opened for the checkpoint"
    assert kept(result) > 0.8 * 80.0 / 120.0 * simulate(SMALL, Scenario(trace=few(500.0)), seconds=120.0).samples


def test_a_cluster_joins_that_is_given_its_anchor_by_one_that_was_cut_anew() -> None:
    """With other cuts a stage of the same name holds other rings, and gives what it holds now."""
    small = with_spare(HOME, memory_bytes=10**6)
    deaths = (Death(FIRST, 50.0, 1.0), Death(SECOND, 120.0, 1.0))
    result = simulate(small, Scenario(deaths=deaths), seconds=300.0)
    assert len(result.clusters_lost) == 2
    assert all(lost.back_s is not None and lost.back_s < 200.0 for lost in result.clusters_lost)


@pytest.mark.parametrize("died_s", [87.0, 88.0, 89.0])
def test_where_a_donor_is_lost_another_gives_the_anchor(died_s: float) -> None:
    """Of three clusters one is to be given the anchor, and one of the others dies while it is being asked for it."""
    deaths = (Death(FIRST, 80.0, 0.0, back_after_s=1.0), Death(SECOND, died_s, 5.0, back_after_s=1.0))
    joins = tuple(Join(node.name, 40.0) for node in NEW)
    scenario = Scenario(deaths=deaths, joins=joins, restart_s=3.0, control_latency_s=1.5)
    result = simulate(WITH_NEW, scenario, seconds=250.0)
    assert [lost.back_s is not None for lost in result.clusters_lost] == [True, True]
