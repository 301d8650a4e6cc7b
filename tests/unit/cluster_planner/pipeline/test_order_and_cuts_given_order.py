import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster_planner.pipeline.order_and_cuts import Tables, best_cuts


def tables_of(seed: int, nodes: int, positions: int, impossible: float) -> Tables:
    random = np.random.default_rng(seed)
    stage = random.uniform(1, 10, (nodes, positions, positions))
    stage[random.uniform(size=stage.shape) < impossible] = np.inf
    for table in stage:
        table[np.tril_indices(positions)] = np.inf
    return Tables(stage, random.uniform(0, 10, (nodes, nodes, positions)))


def cost_of(tables: Tables, steps: tuple[tuple[int, int, int], ...], combine: np.ufunc) -> float:
    parts = [tables.stage[j, a, b] for j, a, b in steps]
    parts += [tables.hop[i, j, b] for (i, _, b), (j, _, _) in itertools.pairwise(steps)]
    return float(combine.reduce(parts))


def brute_force(tables: Tables, order: tuple[int, ...], combine: np.ufunc, least: int) -> float:
    last = tables.stage.shape[1] - 1
    best = np.inf
    for count in range(least, len(order) + 1):
        for chosen in itertools.combinations(order, count):
            for inner in itertools.combinations(range(1, last), count - 1):
                edges = (0, *inner, last)
                steps = tuple((j, a, b) for j, (a, b) in zip(chosen, itertools.pairwise(edges), strict=True))
                best = min(best, cost_of(tables, steps, combine))
    return float(best)


@settings(max_examples=80, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(1, 4),
    st.integers(2, 6),
    st.sampled_from([0.0, 0.3]),
    st.integers(1, 4),
    st.sampled_from([np.maximum, np.add]),
)
def test_cuts_are_optimal_for_the_order(
    seed: int, nodes: int, positions: int, impossible: float, least: int, combine: np.ufunc
) -> None:
    tables = tables_of(seed, nodes, positions, impossible)
    order = tuple(int(i) for i in np.random.default_rng(seed).permutation(nodes))
    expected = brute_force(tables, order, combine, least)
    found = best_cuts(tables, order, combine, least)
    if found is None:
        assert expected == np.inf
        return
    assert found.cost == pytest.approx(expected)
    assert cost_of(tables, found.steps, combine) == pytest.approx(found.cost)
    assert len(found.steps) >= least
    assert [order.index(j) for j, _, _ in found.steps] == sorted(order.index(j) for j, _, _ in found.steps)


def test_too_few_units_for_the_stages_is_no_solution() -> None:
    assert best_cuts(tables_of(0, 3, 2, 0.0), (0, 1, 2), np.maximum, 2) is None
