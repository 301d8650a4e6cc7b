import itertools
from collections.abc import Callable

import numpy as np
import pytest

from cluster_planner.inputs.fleet import Fleet, Node
from cluster_planner.inputs.links import Link, RegionLink
from cluster_planner.inputs.model_costs import ModelCosts, Unit, Workload
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.pipeline.best_pipeline import THOROUGH_NODES, Solved, plan_pipeline, timed
from cluster_planner.pipeline.memory_fit import largest_fitting_window
from cluster_planner.pipeline.order_and_cuts import EXACT_ORDER_NODES, Solution, Tables, best_pipeline
from cluster_planner.plan import Cluster, Stage
from cluster_planner.predict.prediction import predict


@pytest.fixture
def spans(make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]) -> SpanCosts:
    return SpanCosts(make_model(12), make_workload())


def test_a_faster_node_gets_more_units(make_node: Callable[..., Node], spans: SpanCosts) -> None:
    fleet = Fleet((make_node("slow"), make_node("fast", flops_per_s=2e10)))
    found = plan_pipeline(fleet, spans, fleet.names, 0.0, 2)
    assert found is not None
    sizes = {stage.node: stage.units[1] - stage.units[0] for stage in found.stages}
    assert sizes == {"slow": 4, "fast": 8}


def test_memory_overrules_speed(make_node: Callable[..., Node], spans: SpanCosts) -> None:
    small = spans.memory_bytes(0, 3, 1)
    fleet = Fleet((make_node("large"), make_node("fast", flops_per_s=9e10, memory_bytes=small)))
    found = plan_pipeline(fleet, spans, fleet.names, 0.0, 2)
    assert found is not None
    for stage in found.stages:
        assert spans.memory_bytes(*stage.units, found.window) <= fleet.node(stage.node).memory_bytes


def test_what_does_not_fit_has_no_pipeline(make_node: Callable[..., Node], spans: SpanCosts) -> None:
    fleet = Fleet(tuple(make_node(n, memory_bytes=spans.memory_bytes(0, 5, 1)) for n in "ab"))
    assert plan_pipeline(fleet, spans, fleet.names, 0.0, 2) is None


@pytest.mark.parametrize("others", [2, EXACT_ORDER_NODES + 2])
def test_a_node_that_would_slow_the_pipeline_is_left_out(
    make_node: Callable[..., Node], spans: SpanCosts, others: int
) -> None:
    crawling = make_node("phone", flops_per_s=1e6)
    fleet = Fleet((*(make_node(f"n{i}") for i in range(others)), crawling))
    found = plan_pipeline(fleet, spans, fleet.names, 0.0, 2)
    assert found is not None
    assert "phone" not in [stage.node for stage in found.stages]


def test_a_node_that_is_left_out_does_not_limit_the_others_cuts(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    """The far, fast node has the least bottleneck, too far for the window; the search was held to what is near it."""
    units = make_model(8, flops=8e3, parameter_bytes=17_000, boundary_bytes=256, boundary_gradient_bytes=256)
    small = SpanCosts(units, make_workload(micro_batch=8, average_every=2048))
    nodes = [make_node(name, flops_per_s=speed) for name, speed in (("far", 2e9), ("mid", 1e9), ("slow", 0.5e9))]
    far = [Link("far", other, 0.03, 2.5e6) for other in ("mid", "slow")]
    fleet = Fleet(tuple(nodes), (Link("mid", "slow", 0.002, 1.25e7), *far))
    found, without = (plan_pipeline(fleet, small, names, 0.0, 2) for names in (fleet.names, ("mid", "slow")))
    assert found is not None
    assert without is not None
    assert "far" not in [stage.node for stage in found.stages]
    assert found.value == pytest.approx(without.value)


@pytest.mark.parametrize("seed", [0, 5, 12, 46, 54, 79, 94, 122, 139])
def test_no_order_and_cuts_of_few_nodes_are_much_better(
    make_node: Callable[..., Node], make_workload: Callable[..., Workload], seed: int
) -> None:
    """Far apart, so that pipelines wait for their round trip, and the least bottleneck is seldom the best."""
    random = np.random.default_rng(seed)
    boundaries = (10_000, 8_000, 50_000, 15_000, 75_000, 50_000)
    units = tuple(
        Unit(
            name=f"u{i}",
            flops=float(random.uniform(2e8, 4e8)),
            parameter_bytes=10**6,
            saved_bytes=10**5,
            boundary_bytes=alive,
            boundary_gradient_bytes=alive,
        )
        for i, alive in enumerate(boundaries)
    )
    fleet = Fleet(
        tuple(
            make_node(f"n{i}", flops_per_s=float(speed), region=f"r{i // 2}")
            for i, speed in enumerate(random.uniform(8e9, 2e10, 3))
        ),
        (),
        (RegionLink("r0", "r0", 0.003, 5e6), RegionLink("r0", "r1", float(random.uniform(0.03, 0.12)), 2.5e6)),
    )
    spans = SpanCosts(ModelCosts(units, "few"), make_workload(micro_batch=1, update_every=2, max_staleness=2))
    found = plan_pipeline(fleet, spans, fleet.names, 0.0, 2)
    assert found is not None
    ways = (
        timed(fleet, spans, tuple(map(Stage, order, itertools.pairwise((0, *cuts, 6)))), 0.0)
        for count in (2, 3)
        for order in itertools.permutations(fleet.names, count)
        for cuts in itertools.combinations(range(1, 6), count - 1)
    )
    best = max(predict(fleet, spans, [Cluster("c0", w.window, w.stages)], []).prediction.objective for w in ways)
    assert found.value >= 0.96 * best


def test_a_small_fleet_s_pipelines_are_worth_what_is_predicted_of_them(
    make_node: Callable[..., Node], make_workload: Callable[..., Workload], make_model: Callable[..., ModelCosts]
) -> None:
    """With two updates in flight over long latencies bunches meet, and the formulas promise more than a run makes."""
    spans = SpanCosts(make_model(12), make_workload(micro_batch=1, update_every=2, max_staleness=1))
    speeds = {"a": 4e9, "b": 6e9, "c": 5e9, "d": 4e9}
    nodes = tuple(make_node(name, flops_per_s=speed, region=name) for name, speed in speeds.items())
    fleet = Fleet(nodes, (), tuple(RegionLink(a, b, 0.09, 2.5e6) for a, b in itertools.combinations(speeds, 2)))
    found = plan_pipeline(fleet, spans, fleet.names, 0.0, 2)
    assert found is not None
    cluster = Cluster("c0", found.window, found.stages)
    assert found.samples_per_s == pytest.approx(predict(fleet, spans, [cluster], []).prediction.samples_per_s)
    assert found.samples_per_s < 0.98 * timed(fleet, spans, found.stages, 0.0).samples_per_s


def test_a_required_node_is_used(make_node: Callable[..., Node], spans: SpanCosts) -> None:
    fleet = Fleet((make_node("a"), make_node("b"), make_node("phone", flops_per_s=1e6)))
    found = plan_pipeline(fleet, spans, fleet.names, 0.0, 2, required="phone")
    assert found is not None
    assert "phone" in [stage.node for stage in found.stages]


def test_the_window_shrinks_to_the_memory(make_node: Callable[..., Node], spans: SpanCosts) -> None:
    fleet = Fleet((make_node("a", memory_bytes=spans.memory_bytes(0, 6, 3)), make_node("b")))
    stages = (Stage("a", (0, 6)), Stage("b", (6, 12)))
    assert largest_fitting_window(fleet, spans, stages, 8) == 3
    assert largest_fitting_window(fleet, spans, stages, 2) == 2


def test_in_a_large_fleet_too_a_pipeline_is_worth_no_less_than_that_of_the_nodes_that_it_uses(
    make_node: Callable[..., Node],
    make_model: Callable[..., ModelCosts],
    make_workload: Callable[..., Workload],
) -> None:
    """Nodes that are left out set limits of the first search. A small model was not searched again without them."""
    draw, spans = np.random.default_rng(0), SpanCosts(make_model(8), make_workload())
    fleet = Fleet(
        tuple(
            make_node(
                f"n{i}",
                flops_per_s=float(draw.uniform(1e9, 3e10)),
                memory_bytes=round(draw.uniform(1.1e8, 1.6e8)),
                up_bytes_per_s=float(draw.choice([3e5, 2.5e6])),
            )
            for i in range(THOROUGH_NODES + 1)
        )
    )
    for first in range(THOROUGH_NODES - 6):
        found = plan_pipeline(fleet, spans, fleet.names[first : first + 7], 0.0, 1)
        assert found is not None
        used = plan_pipeline(fleet, spans, [stage.node for stage in found.stages], 0.0, 1)
        assert used is not None
        assert found.value >= used.value * (1 - 1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_what_was_found_with_more_room_is_found_again_without_another_search(seed: int) -> None:
    """Searches whose answer is known are left out, and all answers are as good as those of searches of their own."""
    random, solved, searches = np.random.default_rng(seed), Solved(), 0

    def find(tables: Tables, combine: np.ufunc) -> Solution | None:
        nonlocal searches
        searches += 1
        return best_pipeline(tables, combine, 1, ())

    shape, asked = (3, 6, 6), 0
    stage, seconds = random.uniform(1, 10, shape), random.uniform(1, 10, shape)
    hop = random.uniform(0, 3, (3, 3, 6))
    stage[:, *np.tril_indices(6)] = np.inf
    for _ in range(4):
        tables, trips = Tables(stage, hop), Tables(np.where(np.isfinite(stage), seconds, np.inf), hop)
        for limit_s in (np.inf, 12.0, 9.0, 6.0):
            for combine in (np.add, np.maximum):
                asked += 1
                costs = trips if combine is np.add else tables
                own = best_pipeline(tables.within(limit_s, costs), combine, 1, ())
                found = solved.solve(tables, trips, find, limit_s, combine)
                assert (found is None) == (own is None)
                assert found is None or own is None or found.cost == pytest.approx(own.cost)
        stage = np.where(random.random(shape) < 0.2, np.inf, stage)  # less fits
    assert searches < asked


def test_where_nothing_was_possible_with_more_room_or_a_higher_limit_nothing_is_searched_for() -> None:
    asked: list[np.ufunc] = []

    def find(tables: Tables, combine: np.ufunc) -> Solution | None:
        asked.append(combine)
        return best_pipeline(tables, combine, 1, ())

    stage = np.full((1, 3, 3), np.inf)
    stage[0, 0, 2] = 5.0
    tables, nothing = Tables(stage, np.zeros((1, 1, 3))), Tables(np.full((1, 3, 3), np.inf), np.zeros((1, 1, 3)))
    solved = Solved()
    for limit_s, searches in ((4.0, 1), (3.0, 1), (4.5, 2), (6.0, 3), (4.5, 3)):
        found = solved.solve(tables, tables, find, limit_s, np.add)
        assert (found is not None) == (limit_s > 5.0)
        assert len(asked) == searches
    assert solved.solve(nothing, nothing, find, np.inf, np.add) is None
    assert solved.solve(nothing, nothing, find, np.inf, np.maximum) is None
    assert asked[3:] == [np.add, np.maximum], "of one of the two nothing follows for the other"
    for combine in (np.add, np.maximum):
        assert solved.solve(nothing, nothing, find, np.inf, combine) is None
    assert len(asked) == 5


def test_a_group_that_fits_in_no_room_is_searched_once(
    make_node: Callable[..., Node], spans: SpanCosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[np.ufunc] = []

    def find(tables: Tables, combine: np.ufunc, **given: object) -> Solution | None:
        asked.append(combine)
        return best_pipeline(tables, combine, 2, ())

    monkeypatch.setattr("cluster_planner.pipeline.best_pipeline.best_pipeline", find)
    fleet = Fleet(tuple(make_node(name, memory_bytes=spans.memory_bytes(0, 5, 1)) for name in "ab"))
    assert plan_pipeline(fleet, spans, fleet.names, 0.0, 2) is None
    assert asked == [np.maximum]


def test_a_pipeline_that_is_worth_as_much_with_fewer_nodes_is_walked_before_it_is_taken(
    make_node: Callable[..., Node],
    make_model: Callable[..., ModelCosts],
    make_workload: Callable[..., Workload],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the formulas the slow node limits both pipelines; that of two nodes waits for its round trip as well."""
    spans = SpanCosts(make_model(3), make_workload(micro_batch=1, update_every=2))
    nodes = (make_node("slow", flops_per_s=1e9), make_node("near"), make_node("far"))
    links = (("slow", "near", 0.01), ("near", "far", 0.01), ("slow", "far", 0.24))
    fleet = Fleet(nodes, tuple(Link(a, b, latency_s, 1e8) for a, b, latency_s in links))
    three = ((0, 0, 1), (1, 1, 2), (2, 2, 3))
    two = ((0, 0, 1), (2, 1, 3))

    def find(tables: Tables, combine: np.ufunc, **given: object) -> Solution | None:
        if len(tables.stage) < len(nodes):  # searched again with the nodes of a pipeline that has left one out
            return None
        steps = three if combine is np.maximum else two
        return Solution(tables.total(steps, combine), steps)

    monkeypatch.setattr("cluster_planner.pipeline.best_pipeline.best_pipeline", find)
    monkeypatch.setattr("cluster_planner.pipeline.best_pipeline.window_limited_s", lambda *given: 1e3)
    stages = [tuple(Stage(fleet.names[i], (start, end)) for i, start, end in steps) for steps in (three, two)]
    by_formula = [timed(fleet, spans, each, 0.0).value for each in stages]
    assert by_formula[0] == by_formula[1]
    found = plan_pipeline(fleet, spans, fleet.names, 0.0, 2)
    assert found is not None
    assert found.stages == stages[0]
    assert found.value == by_formula[0]
