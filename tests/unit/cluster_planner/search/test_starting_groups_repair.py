import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cluster_planner.search.estimates import Group
from cluster_planner.search.starting_groups import regrouped

POINTS = np.arange(8.0)[:, None]


def test_what_belongs_together_goes_where_most_of_it_is() -> None:
    atoms = [(0, 4, 5), (1,), (2,), (3,), (6,), (7,)]
    found = regrouped(POINTS, [(0, 1, 2, 3), (4, 5, 6, 7)], atoms, frozenset(), lambda g: True, lambda g: True)
    assert found == ((0, 4, 5, 6, 7), (1, 2, 3))


def test_a_group_is_divided_until_all_is_allowed_and_what_holds_nothing_is_given_up() -> None:
    atoms = [(i,) for i in range(8)]
    even = regrouped(POINTS, [tuple(range(8))], atoms, frozenset(), lambda g: len({i % 2 for i in g}) == 1, bool)
    assert even == ((0, 2, 4, 6), (1, 3, 5, 7))
    small = regrouped(POINTS, [tuple(range(7))], atoms[:7], frozenset(), lambda g: len(g) <= 4, lambda g: len(g) > 3)
    assert small is not None
    assert len(small) == 1


def test_who_is_needed_gets_the_nearest_that_others_can_spare() -> None:
    atoms = [(i,) for i in range(8)]
    groups: list[Group] = [(0,), (1, 2, 3, 4), (5, 6, 7)]
    found = regrouped(POINTS, groups, atoms, frozenset((0,)), lambda g: True, lambda g: len(g) >= 3)
    assert found == ((0, 1, 2), (5, 6, 7))
    never = regrouped(POINTS, groups, atoms, frozenset((0,)), lambda g: len(g) < 3, lambda g: len(g) >= 3)
    assert never is None


@given(
    st.integers(1, 3), st.sets(st.integers(0, 7), max_size=3), st.sets(st.tuples(st.integers(0, 7), st.integers(0, 7)))
)
def test_groups_keep_to_all_rules(size: int, needed: set[int], apart: set[tuple[int, int]]) -> None:
    def allows(group: Group) -> bool:
        return all(a == b or not {a, b} <= set(group) for a, b in apart)

    atoms = [(i,) for i in range(8)]
    found = regrouped(POINTS, [(0, 1, 2), (3, 4, 5, 6, 7)], atoms, frozenset(needed), allows, lambda g: len(g) >= size)
    if found is not None:
        nodes = [node for group in found for node in group]
        assert len(set(nodes)) == len(nodes)
        assert needed <= set(nodes)
        assert all(allows(group) and len(group) >= size for group in found)
