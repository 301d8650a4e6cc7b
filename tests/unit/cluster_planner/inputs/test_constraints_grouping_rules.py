from collections.abc import Callable

from cluster_planner import Fleet, Node
from cluster_planner.inputs.constraints import AWAY_S, Constraints, Pin, hours_from


def test_no_rules_allow_everything(make_node: Callable[..., Node]) -> None:
    rules = Fleet(tuple(make_node(name) for name in "abc")).rules
    assert not rules.are_any
    assert rules.allows((0, 1, 2))
    assert rules.presence((0, 1)) == 1.0
    assert rules.atoms((0, 2)) == [(0,), (2,)]


def test_nodes_that_fail_make_their_cluster_count_less(make_node: Callable[..., Node]) -> None:
    rules = Fleet((make_node("a", mtbf_s=AWAY_S), make_node("b", mtbf_s=2 * AWAY_S), make_node("c"))).rules
    assert not rules.are_any
    assert rules.presence((2,)) == 1.0
    assert rules.presence((0,)) == rules.presence_of("a") == 1 / 2
    assert rules.presence((0, 1, 2)) == 1 / 2.5


def test_each_rule_says_why_it_forbids(make_node: Callable[..., Node]) -> None:
    hours = {"a": "18-24", "b": "20-2", "f": "0-12"}
    nodes = tuple(make_node(name, hours=hours_from(hours.get(name, "0-24"))) for name in "abcdef")
    pins = (Pin("a", "x", 0), Pin("b", "x"), Pin("c", "y"), Pin("d", None, 0))
    rules = Fleet(nodes, constraints=Constraints(forbid=(("a", "e"),), pins=pins)).rules
    assert rules.atoms(range(6)) == [(0, 1), (2,), (3,), (4,), (5,)]
    assert rules.pinned == {0, 1, 2, 3}
    assert rules.label(["e", "c"]) == "y"
    assert rules.required(["a", "e"]) == {"a"}
    assert rules.presence((0, 1)) == rules.presence_of("ab") == 4 / 24
    for nodes_of, said in (
        ((0, 1), None),
        ((0, 1, 4), "has 'a' and 'e', which constraints keep apart"),
        ((0, 1, 2), "has nodes that are pinned to 'x' and nodes that are pinned to 'y'"),
        ((0,), "has nodes that are pinned to 'x', and 'b', pinned to it too, is not among them"),
        ((0, 1, 3), "has two nodes that are pinned to stage 0"),
        ((0, 1, 5), "has nodes that are never all there at the same time"),
    ):
        assert rules.broken(nodes_of) == said
