from collections.abc import Iterable

import numpy as np

from cluster_planner.search.estimates import NOTHING, Group, GroupEstimate
from cluster_planner.search.local_search import LocalSearch, Totals

SPEEDS = (9.0, 1.0, 8.0, 2.0, 5.0, 5.0)


class Pairs:
    """Estimates groups: a pair is worth its slower node, anything else nothing."""

    def __init__(self) -> None:
        self.known: dict[Group, GroupEstimate] = {}

    @property
    def asked(self) -> int:
        return len(self.known)

    def of(self, groups: Iterable[Group]) -> list[GroupEstimate]:
        groups = list(groups)
        for group in groups:
            rate = min(SPEEDS[i] for i in group) if len(group) == 2 else 0.0
            self.known[group] = GroupEstimate(group, rate, rate) if rate else NOTHING
        return [self.known[group] for group in groups]


def improved(groups: list[Group], price: float = 0.0) -> set[Group]:
    search = LocalSearch(
        Pairs(),  # type: ignore[arg-type]
        lambda totals: totals.value - price * totals.clusters,
        np.array(SPEEDS)[:, None],
        [(i,) for i in range(len(SPEEDS))],
        lambda group: True,
    )
    found, settled = search.improve(groups, 10_000, 0)
    assert settled
    return set(found)


def test_nodes_change_places_although_neither_half_of_the_exchange_helps() -> None:
    assert improved([(0, 1), (2, 3), (4, 5)]) == {(0, 2), (4, 5), (1, 3)}


def test_a_cluster_that_is_worth_less_than_it_costs_the_others_goes() -> None:
    assert improved([(0, 2), (4, 5), (1, 3)], price=3.0) == {(0, 2), (4, 5)}


def test_spares_come_in_for_worse_nodes_and_found_clusters() -> None:
    assert improved([(0, 1)]) == {(0, 2), (4, 5), (1, 3)}


def test_totals_add_up() -> None:
    some = Totals().plus([GroupEstimate((0,), 2.0, 1.0), GroupEstimate((1,), 4.0, 3.0)])
    assert some == Totals(2, 6.0, 4.0)
    assert some.minus(Totals(1, 2.0, 1.0)) == Totals(1, 4.0, 3.0)
