import pytest

from cluster_planner import Plan, validate
from experiments.harness.paced_model import MICRO_BATCH
from experiments.plan_quality.home_plans import plan_of, shortest_stage_s, with_clusters
from experiments.plan_quality.homes import DIVISIBLE, LEAST_LAYER_S, homes
from experiments.plan_quality.rehearsing import simulated


@pytest.fixture(scope="module")
def six(paced: None) -> Plan:
    """Six nodes in two places."""
    return plan_of(homes(3, DIVISIBLE)[0])


def test_a_node_takes_its_time_for_a_layer(six: Plan) -> None:
    times = {machine.name: machine.layer_s for machine in homes(3, DIVISIBLE)[0].machines}
    layers = six.costs.units[-1].flops + sum(unit.flops for unit in six.costs.units[:-1])
    for cluster, predicted in zip(six.clusters, six.predicted.clusters, strict=True):
        for stage, timed in zip(cluster.stages, predicted.stages, strict=True):
            start, end = stage.units
            share = sum(unit.flops for unit in six.costs.units[start:end]) / layers
            assert timed.compute_s == pytest.approx(8 * share * times[stage.node], rel=0.06)  # and the update's share
    assert shortest_stage_s(six) >= LEAST_LAYER_S
    assert plan_of(homes(3, DIVISIBLE)[0]) == six


def test_neighbours_have_so_many_clusters_and_are_valid(six: Plan) -> None:
    k = len(six.clusters)
    assert k == 2
    for count in (k - 1, k, k + 1):
        other = with_clusters(six, count, 2)
        assert other is not None
        validate(other)
        assert len(other.clusters) == count
        assert all(len(cluster.stages) >= 2 for cluster in other.clusters)
        assert other.predicted.objective <= six.predicted.objective * 1.02
        running = {stage.node for cluster in other.clusters for stage in cluster.stages}
        assert running | {spare.node for spare in other.spares} == set(six.fleet.names)


def test_there_is_no_plan_of_more_clusters_than_pairs_of_nodes(six: Plan) -> None:
    assert with_clusters(six, 4, 2) is None


@pytest.mark.parametrize("number", [4, 6, 8])
def test_what_is_predicted_is_what_the_simulator_makes_of_it(number: int, paced: None) -> None:
    # An uplink, a round trip across an ocean with two updates in flight, and a slow chain of four.
    plan = plan_of(homes(1)[number])
    made = simulated(plan)
    assert plan.predicted.samples_per_s == pytest.approx(made.samples_per_s, rel=0.05)
    rates = [cluster.samples_per_s for cluster in plan.predicted.clusters]
    assert [rate for rate, _ in made.clusters] == pytest.approx(rates, rel=0.1)
    assert sum(rate for rate, _ in made.clusters) == pytest.approx(made.samples_per_s)
    assert all(0 <= stale <= plan.workload.max_staleness for _, stale in made.clusters)
    assert plan.workload.micro_batch == MICRO_BATCH
