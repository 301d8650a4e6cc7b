"""How many starts tell against a cluster."""

from ravnest.recovery.starts import AT_ONE_NODE, MOST_STARTS, WINDOW_S, Starts


def started(count: int, nodes: tuple[str, ...] = ("a", "b")) -> Starts:
    starts = Starts()
    starts.look({"a", "b"})
    for number in range(count):
        starts.began("c0", float(number), nodes)
    return starts


def test_so_many_within_a_while_are_too_many_for_this_cluster_alone() -> None:
    assert started(MOST_STARTS - 1).too_many("c0", 10.0) is None
    starts = started(MOST_STARTS)
    assert starts.too_many("c0", 10.0) == "it was started 5 times within 10 min"
    assert starts.too_many("c1", 10.0) is None
    assert starts.too_many("c0", WINDOW_S + 1.0) is None


def test_those_of_a_node_that_is_gone_tell_nothing_and_tell_again_once_it_is_there() -> None:
    starts = started(MOST_STARTS)
    starts.look({"a"})
    assert starts.against("c0", 10.0) == 0
    starts.look({"a", "b", "c"})
    assert starts.against("c0", 10.0) == MOST_STARTS


def test_work_that_is_averaged_after_the_last_start_forgives_all_of_them() -> None:
    starts = started(MOST_STARTS)
    starts.averaged({"c0": 40})
    starts.averaged({"c0": 40})
    assert starts.against("c0", 10.0) == MOST_STARTS, "it has given nothing since"
    starts.began("c0", 11.0, ("a", "b"))
    starts.averaged({"c0": 41})
    assert starts.against("c0", 12.0) == MOST_STARTS + 1, "that was given before"
    starts.averaged({"c0": 42})
    assert starts.against("c0", 12.0) == 0
    starts.averaged({})


def test_a_start_that_was_none_and_what_is_forgiven_count_no_more() -> None:
    starts = started(3)
    starts.undo("c0")
    assert starts.against("c0", 10.0) == 2
    starts.forgive("c0")
    assert starts.against("c0", 10.0) == 0


def test_a_node_that_has_ended_a_cluster_so_many_times_in_a_row_is_named_until_it_is_forgiven() -> None:
    starts = started(1)
    for number in range(AT_ONE_NODE):
        assert starts.ends_at("c0") is None, number
        starts.ended("c0", "b")
    assert starts.ends_at("c0") == "b"
    assert starts.ends_at("c1") is None
    for other in ("a", ""):
        starts.ended("c0", other)
        assert starts.ends_at("c0") is None, "not in a row"
        for _ in range(AT_ONE_NODE):
            starts.ended("c0", "b")
        assert starts.ends_at("c0") == "b"
    starts.averaged({"c0": 1})
    starts.averaged({"c0": 2})
    assert starts.ends_at("c0") is None, "it has given something to a round"
    for _ in range(AT_ONE_NODE):
        starts.ended("c0", "")
    assert starts.ends_at("c0") is None, "nobody knows which"
