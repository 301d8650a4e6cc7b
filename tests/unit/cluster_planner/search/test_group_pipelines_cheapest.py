"""Cheapest pipelines as arrays, against every subset, order and cut tried one by one."""

from itertools import combinations, permutations, product

import numpy as np
import pytest

from cluster_planner.search.group_pipelines import chains, in_order, over_subsets

NODES, POSITIONS, ROWS = 3, 4, 5


def tables(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Costs of stages (nodes, from, to, rows), none backwards or empty; of hops (nodes, nodes, cut, rows)."""
    draw = np.random.default_rng(seed)
    stage = draw.uniform(1.0, 9.0, (NODES, POSITIONS, POSITIONS, ROWS))
    stage[:, *np.tril_indices(POSITIONS)] = np.inf
    return stage, draw.uniform(1.0, 9.0, (NODES, NODES, POSITIONS, ROWS))


def by_hand(stage: np.ndarray, hop: np.ndarray, order: tuple[int, ...], combine: np.ufunc) -> float:
    """The least cost of one row's pipeline in this order."""
    found = np.inf
    for cuts in product(range(1, POSITIONS - 1), repeat=len(order) - 1):
        bounds = (0, *cuts, POSITIONS - 1)
        costs = [stage[node, bounds[i], bounds[i + 1]] for i, node in enumerate(order)]
        costs += [hop[a, b, cut] for a, b, cut in zip(order, order[1:], cuts, strict=False)]
        found = min(found, combine.reduce(costs))
    return float(found)


@pytest.mark.parametrize("combine", [np.maximum, np.add])
@pytest.mark.parametrize("seed", range(3))
def test_in_order_finds_the_best_cuts_of_every_row(seed: int, combine: np.ufunc) -> None:
    stage, hop = tables(seed)
    expected = [by_hand(stage[..., row], hop[..., row], (0, 1, 2), combine) for row in range(ROWS)]
    found = in_order(stage.copy(), hop[[0, 1], [1, 2]], combine)
    np.testing.assert_allclose(found.cost, expected)


@pytest.mark.parametrize("least", [1, 2])
@pytest.mark.parametrize("combine", [np.maximum, np.add])
def test_over_subsets_finds_the_best_nodes_in_the_best_order(combine: np.ufunc, least: int) -> None:
    stage, hop = tables(7)
    # From `before` to `after` it is looked up by the one and then the other, whichever way the table is given.
    hop = np.maximum(hop, hop.transpose(1, 0, 2, 3))
    found = over_subsets(stage, hop, combine, least)
    for row in range(ROWS):
        every = {
            used: min(by_hand(stage[..., row], hop[..., row], order, combine) for order in permutations(used))
            for size in range(least, NODES + 1)
            for used in combinations(range(NODES), size)
        }
        assert found.cost[row] == pytest.approx(min(every.values()))
        used = tuple(node for node in range(NODES) if found.used[row] >> node & 1)
        assert every[used] == pytest.approx(found.cost[row])


@pytest.mark.parametrize("combine", [np.maximum, np.add])
def test_a_node_without_units_or_cost_changes_nothing(combine: np.ufunc) -> None:
    stage, hop = tables(1)
    nobody = np.where(np.eye(POSITIONS, dtype=bool), 0.0, np.inf)[None, ..., None].repeat(ROWS, axis=3)
    at_once = np.zeros((1, POSITIONS, ROWS))
    between = hop[[0, 1], [1, 2]]
    alone = in_order(stage.copy(), between, combine).cost.tolist()
    after = in_order(np.concatenate([stage, nobody]), np.concatenate([between, at_once]), combine)
    before = in_order(np.concatenate([nobody, stage]), np.concatenate([at_once, between]), combine)
    assert after.cost.tolist() == before.cost.tolist() == alone


def test_a_chain_begins_with_the_slowest_and_goes_on_to_the_nearest() -> None:
    distance = np.array([[0.0, 5.0, 1.0], [5.0, 0.0, 2.0], [1.0, 2.0, 0.0]])[..., None].repeat(2, axis=2)
    alone_s = np.array([[3.0, 1.0], [1.0, 3.0], [2.0, 2.0]])
    assert chains(distance, alone_s).T.tolist() == [[0, 2, 1], [1, 2, 0]]
