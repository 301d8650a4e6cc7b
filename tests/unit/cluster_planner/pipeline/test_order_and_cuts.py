import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster_planner.pipeline.order_and_cuts import (
    EXACT_ORDER_NODES,
    Pinned,
    Tables,
    best_cuts,
    best_pipeline,
    candidate_orders,
    cheapest_of_sets,
    cuts_of_orders,
    shortlist,
)


def tables_of(seed: int, nodes: int, positions: int) -> Tables:
    random = np.random.default_rng(seed)
    stage = random.uniform(1, 10, (nodes, positions, positions))
    for table in stage:
        table[np.tril_indices(positions)] = np.inf
    return Tables(stage, random.uniform(0, 10, (nodes, nodes, positions)))


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(1, 4),
    st.integers(2, 6),
    st.integers(1, 3),
    st.sampled_from([np.maximum, np.add]),
)
def test_few_nodes_are_ordered_exactly(seed: int, nodes: int, positions: int, least: int, combine: np.ufunc) -> None:
    tables = tables_of(seed, nodes, positions)
    each = [best_cuts(tables, order, combine, least) for order in itertools.permutations(range(nodes))]
    expected = min((s.cost for s in each if s is not None), default=None)
    found = best_pipeline(tables, combine, least, ())
    assert (found is None) == (expected is None)
    if found is not None:
        assert found.cost == pytest.approx(expected)
        ends = [0, *(b for _, _, b in found.steps)]
        assert [(a, b) for _, a, b in found.steps] == list(itertools.pairwise(ends))
        assert ends[-1] == positions - 1
        assert len({j for j, _, _ in found.steps}) == len(found.steps) >= least


@pytest.mark.parametrize("combine", [np.maximum, np.add])
def test_the_cheapest_pipeline_of_each_set_has_all_its_nodes(combine: np.ufunc) -> None:
    tables, found = tables_of(1, 4, 6), cheapest_of_sets(tables_of(1, 4, 6), combine)
    assert np.isinf(found[0])
    for size in range(1, 5):
        for nodes in itertools.combinations(range(4), size):
            each = [best_cuts(tables, order, combine, size) for order in itertools.permutations(nodes)]
            expected = min(one.cost for one in each if one is not None)
            assert found[sum(1 << node for node in nodes)] == pytest.approx(expected)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3), st.sampled_from([np.maximum, np.add]), st.booleans(), st.booleans())
def test_orders_are_cut_together_as_each_by_itself(
    seed: int, least: int, combine: np.ufunc, has_places: bool, is_pinned: bool
) -> None:
    """Costs of one decimal, so that many are equal: then the same is chosen, too."""
    random = np.random.default_rng(seed)
    stage, hop = np.round(tables_of(seed, 6, 7).stage, 1), np.round(random.uniform(0, 10, (6, 6, 7)))
    places = tuple(np.where(random.random(stage.shape) < 0.2, np.inf, stage) for _ in range(3)) if has_places else ()
    tables, pinned = Tables(stage, hop, places), Pinned(frozenset((2,)) if is_pinned else frozenset())
    orders = [tuple(random.permutation(6).tolist()) for _ in range(5)]
    each = [best_cuts(tables, order, combine, least, pinned) for order in orders]
    assert cuts_of_orders(tables, orders, combine, least, pinned) == each


def test_a_required_node_runs_a_stage() -> None:
    tables = tables_of(3, 4, 6)
    free = best_pipeline(tables, np.maximum, 1, ())
    assert free is not None
    for node in range(4):
        found = best_pipeline(tables, np.maximum, 1, (), Pinned(frozenset((node,))))
        assert found is not None
        assert node in [j for j, _, _ in found.steps]
        assert found.cost >= free.cost


def test_many_nodes_get_the_best_of_the_orders_given() -> None:
    nodes = EXACT_ORDER_NODES + 4
    tables = tables_of(5, nodes, 8)
    orders = candidate_orders(tables, np.arange(1.0, nodes + 1), np.arange(nodes, 0.0, -1))
    assert all(sorted(order) == list(range(nodes)) for order in orders)
    each = [best_cuts(tables, order, np.maximum, 2) for order in orders]
    best = min(s.cost for s in each if s is not None)
    found = best_pipeline(tables, np.maximum, 2, shortlist(tables, orders, 2))
    assert found is not None
    assert found.cost == best
