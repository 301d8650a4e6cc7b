from hypothesis import given
from hypothesis import strategies as st

from cluster_planner import ALL_DAY, Node, hours_from
from ravnest.recovery.hours import DRAIN_S, HourWatch

HOUR_S = 3600.0


def node(name: str, hours: int) -> Node:
    return Node(name=name, flops_per_s=1.0, memory_bytes=1, up_bytes_per_s=1.0, down_bytes_per_s=1.0, hours=hours)


def test_a_node_leaves_before_its_hours_end_and_joins_when_they_begin() -> None:
    watch = HourWatch([node("evening", hours_from("18-22")), node("always", ALL_DAY)])
    assert watch.turn(18 * HOUR_S) == []
    assert watch.turn(22 * HOUR_S - DRAIN_S - 1.0) == []
    [left] = watch.turn(22 * HOUR_S - DRAIN_S)
    assert (left.kind, left.node) == ("leave", "evening")
    assert "18-22 UTC" in left.why
    assert watch.away == {"evening"}
    assert watch.turn(23 * HOUR_S) == []
    [joined] = watch.turn((24 + 18) * HOUR_S)
    assert (joined.kind, joined.node) == ("join", "evening")
    assert watch.away == set()


def test_a_node_whose_hours_have_not_begun_leaves_at_once() -> None:
    assert [each.kind for each in HourWatch([node("a", hours_from("22-6"))]).turn(12 * HOUR_S)] == ["leave"]


@given(
    hours=st.integers(1, ALL_DAY - 1),
    moments=st.lists(st.floats(0.0, 400 * HOUR_S, allow_nan=False), min_size=1, max_size=30).map(sorted),
)
def test_whenever_it_is_asked_orders_alternate_and_follow_the_hours(hours: int, moments: list[float]) -> None:
    watch, kinds = HourWatch([node("a", hours)]), []
    for utc_s in moments:
        kinds += [each.kind for each in watch.turn(utc_s)]
        inside = bool(hours >> int(utc_s // HOUR_S) % 24 & 1)
        assert inside or "a" in watch.away
        assert watch.turn(utc_s) == []
    assert kinds == [("leave", "join")[i % 2] for i in range(len(kinds))]


def test_nodes_that_come_later_are_watched_too() -> None:
    watch = HourWatch([])
    assert watch.turn(0.0) == []
    watch.know([Node(name="new", flops_per_s=1.0, memory_bytes=1, up_bytes_per_s=1.0, down_bytes_per_s=1.0, hours=2)])
    (left,) = watch.turn(0.0)
    assert (left.kind, left.node) == ("leave", "new")
    (back,) = watch.turn(3600.0)
    assert (back.kind, back.node) == ("join", "new")
