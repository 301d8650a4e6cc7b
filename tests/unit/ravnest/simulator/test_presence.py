import math

from ravnest.simulator.presence import NodeChange, Presence, absent_at_first


def test_a_node_is_there_until_it_is_gone_and_again_when_it_is_back() -> None:
    presence = Presence(["a", "b"], absent={"b"})
    assert presence.alive(0.0) == {"a"}
    presence.take(NodeChange(5.0, "b", "back"))
    presence.take(NodeChange(6.0, "a", "gone", until_s=9.0))
    assert presence.alive(6.0) == {"b"}
    assert presence.coming == [9.0]
    assert presence.alive(9.0) == {"a", "b"}


def test_notice_alone_takes_nobody_away() -> None:
    presence = Presence(["a"], absent=())
    presence.take(NodeChange(1.0, "a", "notice"))
    assert presence.alive(2.0) == {"a"}
    presence.take(NodeChange(3.0, "a", "gone"))
    assert presence.alive(math.nextafter(math.inf, 0.0)) == set()


def test_who_comes_first_was_not_there_before() -> None:
    changes = [
        NodeChange(9.0, "late", "back"),
        NodeChange(0.0, "early", "back"),
        NodeChange(3.0, "old", "gone"),
        NodeChange(4.0, "old", "back"),
    ]
    assert absent_at_first(changes) == {"late"}
