"""Which nodes leave because Ray drains them, as Ray says it in turn."""

from cluster_planner import Plan
from ravnest.driver.drain_notices import LOOK_EVERY_S, WHY, DrainNotices
from ravnest.driver.node_requests import NodeRequest
from ravnest.errors import RunFailed


def notices(*said: set[str] | None) -> tuple[DrainNotices, list[int]]:
    """What Ray says at each question; None: it has not answered."""
    asked: list[int] = []

    def drained(plan: Plan) -> set[str]:
        asked.append(1)
        answer = said[len(asked) - 1]
        if answer is None:
            raise RunFailed("Ray has not said yet")
        return answer

    return DrainNotices(drained), asked


def leaves(*nodes: str) -> list[NodeRequest]:
    return [NodeRequest("leave", node, WHY, noticed=True) for node in nodes]


def test_each_node_that_is_drained_leaves_once(plan: Plan) -> None:
    drains, _ = notices(set(), {"tower", "desk"}, {"tower", "desk", "laptop"}, {"tower"}, {"tower", "desk"})
    found = [drains.turn(plan, LOOK_EVERY_S * number) for number in range(5)]
    assert found == [[], leaves("desk", "tower"), leaves("laptop"), [], leaves("desk")], "it was there again in between"


def test_ray_is_asked_again_at_once_where_it_does_not_answer_and_else_after_a_while(plan: Plan) -> None:
    drains, asked = notices(None, {"desk"}, {"desk"})
    assert [drains.turn(plan, at_s * LOOK_EVERY_S) for at_s in (0.0, 0.3, 0.6, 1.2)] == [[], leaves("desk"), [], []]
    assert len(asked) == 2
    assert drains.turn(plan, 1.3 * LOOK_EVERY_S) == []
    assert len(asked) == 3
