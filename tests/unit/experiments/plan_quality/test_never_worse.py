import pytest

from experiments.plan_quality import never_worse
from experiments.plan_quality.never_worse import NODES, measure, of_nodes, random_case


def test_the_same_seed_gives_the_same_fleet_and_parts_keep_their_regions_links() -> None:
    fleet, costs, work = random_case(3)
    assert (fleet, costs, work) == random_case(3)
    assert NODES[0] <= len(fleet.nodes) < NODES[1]
    here = {fleet.nodes[i].region for i in (0, 1)}
    part = of_nodes(fleet, (0, 1))
    assert part.names == fleet.names[:2]
    assert {region for link in part.regions for region in (link.a, link.b)} == here


@pytest.mark.parametrize(("part_worth", "held"), [(1.0, True), (1.01, False)])
def test_a_part_that_is_worth_more_is_told(part_worth: float, held: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = len(random_case(0)[0].nodes)
    monkeypatch.setattr(never_worse, "_worth", lambda fleet, *_: 1.0 if len(fleet.nodes) == nodes else part_worth)
    (claim,) = measure(quick=True).claims
    assert claim.held is held


def test_fleets_that_are_not_asked_for_keep_their_rows_and_no_claim_of_all_is_made_of_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(never_worse, "_worth", lambda *_: 1.0)
    first = measure(quick=False, asked=[3])
    both = measure(quick=False, asked=[1], earlier=lambda: first.tables[0].rows)
    assert [row[0] for row in both.tables[0].rows] == [1, 3]
    assert both.tables[0].rows[1] == first.tables[0].rows[0]
    assert both.claims[0].held is None
    every = measure(quick=False)
    assert [row[0] for row in every.tables[0].rows] == list(range(never_worse.FLEETS))
    assert every.claims[0].held is True
    broken = [[*row[:5], 1.01, *row[6:]] for row in first.tables[0].rows]
    assert measure(quick=False, asked=[1], earlier=lambda: broken).claims[0].held is False


def test_rows_that_another_process_adds_meanwhile_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(never_worse, "_worth", lambda *_: 1.0)
    stored = list(measure(quick=False, asked=[3]).tables[0].rows)
    meanwhile = measure(quick=False, asked=[5]).tables[0].rows

    def worth_while_another_ends(*_: object) -> float:
        stored[1:] = meanwhile
        return 1.0

    monkeypatch.setattr(never_worse, "_worth", worth_while_another_ends)
    both = measure(quick=False, asked=[1], earlier=lambda: stored)
    assert [row[0] for row in both.tables[0].rows] == [1, 3, 5]
