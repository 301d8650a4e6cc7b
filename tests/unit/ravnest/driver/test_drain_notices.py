"""Which nodes leave because Ray drains them, as Ray says it in turn."""

from collections.abc import Collection

from cluster_planner import Plan
from ravnest.driver.drain_notices import LOOK_EVERY_S, WHY, DrainNotices
from ravnest.driver.node_requests import NodeRequest
from ravnest.errors import RunFailed


class Ray:
    """What Ray says at each question; None: it has not answered; an error: it cannot be asked."""

    def __init__(self, *said: set[str] | Exception | None) -> None:
        self.said, self.asked = said, 0
        self.notices: list[str] = []
        self.drains = DrainNotices(self._drained, self.notices.append)

    def _drained(self, plan: Plan) -> set[str]:
        answer = self.said[self.asked]
        self.asked += 1
        if answer is None:
            raise RunFailed("Ray has not said yet")
        if isinstance(answer, Exception):
            raise RunFailed(str(answer)) from answer
        return answer

    def turn(self, plan: Plan, looks: float, left: Collection[str] = ("desk", "laptop", "tower")) -> list[NodeRequest]:
        return self.drains.turn(plan, LOOK_EVERY_S * looks, left)


def leaves(*nodes: str) -> list[NodeRequest]:
    return [NodeRequest("leave", node, WHY, noticed=True) for node in nodes]


def test_each_node_that_is_drained_leaves_once(plan: Plan) -> None:
    ray = Ray(set(), {"tower", "desk"}, {"tower", "desk", "laptop"}, {"tower"}, {"tower", "desk"})
    found = [ray.turn(plan, number) for number in range(5)]
    assert found == [[], leaves("desk", "tower"), leaves("laptop"), [], leaves("desk")], "it was there again in between"
    assert ray.notices == []


def test_one_that_is_let_in_again_while_it_still_drains_leaves_again(plan: Plan) -> None:
    ray = Ray(*[{"tower", "desk"}] * 4)
    left = [(), {"tower", "desk"}, {"tower"}, {"tower", "desk"}]
    found = [ray.turn(plan, number, each) for number, each in enumerate(left)]
    assert found == [leaves("desk", "tower"), [], leaves("desk"), []]


def test_ray_is_asked_again_at_once_where_it_does_not_answer_and_else_after_a_while(plan: Plan) -> None:
    ray = Ray(None, {"desk"}, {"desk"})
    assert [ray.turn(plan, looks) for looks in (0.0, 0.3, 0.6, 1.2)] == [[], leaves("desk"), [], []]
    assert ray.asked == 2
    assert ray.turn(plan, 1.3) == []
    assert ray.asked == 3
    assert ray.notices == []


def test_the_user_is_told_once_that_ray_cannot_be_asked_and_it_is_asked_again_after_a_while(plan: Plan) -> None:
    ray = Ray(ConnectionError("no head"), TimeoutError(), {"desk"})
    assert [ray.turn(plan, looks) for looks in (0.0, 0.5, 1.0, 2.0)] == [[], [], [], leaves("desk")]
    assert ray.asked == 3
    assert ray.notices == ["Ray does not say which nodes it drains (no head): it is asked again"]


def test_a_version_of_ray_that_cannot_say_it_is_asked_once(plan: Plan) -> None:
    ray = Ray(NotImplementedError("version 9 has no get_draining_nodes"))
    assert [ray.turn(plan, looks) for looks in (0.0, 1.0, 1e6)] == [[], [], []]
    (said,) = ray.notices
    assert "version 9 has no get_draining_nodes" in said
    assert said.endswith("no node leaves for that")
