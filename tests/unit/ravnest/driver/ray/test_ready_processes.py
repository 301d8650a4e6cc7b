"""Which stages have a ready process beside them, with a stand-in for Ray."""

from types import SimpleNamespace
from typing import Any

from ravnest.driver.ray.ready_processes import ReadyProcesses
from ravnest.recovery import READY_AFTER_S
from ravnest.stage.line import IS_READY


class RayError(Exception):
    """The base of Ray's errors."""


class Ray:
    """`outcomes` has what the call of each stage has come to by now."""

    def __init__(self) -> None:
        self.outcomes: dict[str, Any] = {}
        self.asked: list[tuple[str, float]] = []
        self.exceptions = SimpleNamespace(RayError=RayError)

    def actor(self, stage: str) -> Any:
        def remote(after_s: float) -> str:
            self.asked.append((stage, after_s))
            return stage

        return SimpleNamespace(make_ready=SimpleNamespace(remote=remote))

    def wait(self, calls: list[str], *, num_returns: int, timeout: float) -> tuple[list[str], list[str]]:
        assert (num_returns, timeout) == (len(calls), 0.0)
        return [call for call in calls if call in self.outcomes], []

    def get(self, call: str) -> Any:
        if isinstance(self.outcomes[call], Exception):
            raise self.outcomes[call]
        return self.outcomes[call]


def entered(*stages: str, beside: tuple[str, ...] = ("a", "b", "c")) -> tuple[Ray, ReadyProcesses]:
    ray = Ray()
    ready = ReadyProcesses(ray)
    ready.want(stages, beside)
    for stage in stages:
        ready.entered(stage, ray.actor(stage))
    return ray, ready


def test_a_place_can_be_taken_once_the_process_has_loaded_and_the_stages_own_has_ended() -> None:
    ray, ready = entered("a", "b")
    assert ray.asked == [("a", READY_AFTER_S), ("b", READY_AFTER_S)]
    ready.ended("a")
    ready.look()
    assert ready.waiting == set()
    ray.outcomes = {"a": ("said", IS_READY), "b": ("said", IS_READY)}
    ready.look()
    assert ready.waiting == {"a"}
    assert ready.nodes({"a": "desk", "b": "attic"}) == {"desk", "attic"}, "the other one's stage may be ended"


def test_an_actor_rests_where_its_stage_is_over_and_may_become_another_stage() -> None:
    ray, ready = entered("a", "b")
    ray.outcomes = {"a": ("said", IS_READY)}
    ready.look()
    assert ready.rest("a", "desk", "actor of a")
    assert not ready.rest("b", "attic", "actor of b"), "nothing waits in it yet"
    assert (ready.waiting, ready.nodes({})) == (set(), {"desk"})
    assert (ready.take("attic"), ready.take("desk"), ready.take("desk")) == (None, "actor of a", None)
    ready.want(["c"], ["c"])
    ready.entered("c", ray.actor("c"))
    assert ray.asked[2:] == [("c", READY_AFTER_S)], "it is to have another one"


def test_one_actor_rests_on_a_node() -> None:
    ray, ready = entered("a", "b")
    ray.outcomes = {"a": ("said", IS_READY), "b": ("said", IS_READY)}
    ready.look()
    assert [ready.rest(stage, "desk", stage) for stage in "ab"] == [True, False]
    assert ready.leave(["attic"]) == []
    assert ready.leave(["desk"]) == ["a"]


def test_where_nothing_runs_a_process_is_made_ready_once_until_something_runs_there() -> None:
    ready = ReadyProcesses(ray := Ray())
    assert ready.untried({"desk", "attic"}) == {"desk", "attic"}
    actors = {node: ray.actor(node) for node in ("desk", "attic")}
    for node, actor in actors.items():
        ready.coming(node, actor)
    assert ray.asked == [("desk", 0.0), ("attic", 0.0)]
    assert ready.untried({"desk", "attic"}) == set()
    ray.outcomes = {"desk": ("said", IS_READY), "attic": ("said", b'{"failed": "no module"}')}
    assert ready.look() == [actors["attic"]], "one that cannot load is none"
    assert ready.nodes({}) == {"desk"}
    assert ready.untried({"desk", "attic"}) == set(), "it would fail again"
    assert ready.untried({"desk"}) == set()
    assert ready.untried({"desk", "attic"}) == {"attic"}, "it was away, or something ran there"


def test_where_one_was_taken_or_ended_for_a_stage_another_is_made_as_soon_as_nothing_runs_there() -> None:
    ready = ReadyProcesses(ray := Ray())
    for node in ("desk", "attic", "barn"):
        ready.coming(node, ray.actor(node))
    ray.outcomes = {"desk": ("said", IS_READY), "barn": ("died", "killed")}
    ready.look()
    assert ready.take("desk") is not None
    assert len(ready.leave(["attic"])) == 1, "a stage begins there"
    assert ready.take("barn") is None
    assert ready.untried({"desk", "attic", "barn"}) == {"desk", "attic", "barn"}, "neither of their stages came to run"


def test_one_that_could_not_load_is_not_made_again_while_nothing_has_run_there() -> None:
    ready = ReadyProcesses(ray := Ray())
    ready.coming("desk", ray.actor("desk"))
    ray.outcomes = {"desk": ("died", "killed")}
    ready.look()
    ready.leave(["attic"])
    assert ready.untried({"desk", "attic"}) == {"attic"}


def test_what_is_made_ready_on_a_node_that_has_left_is_ended() -> None:
    ready = ReadyProcesses(ray := Ray())
    actor = ray.actor("desk")
    ready.coming("desk", actor)
    assert ready.leave(["desk"]) == [actor]
    ray.outcomes = {"desk": ("said", IS_READY)}
    assert (ready.look(), ready.nodes({})) == ([], set())


def test_none_is_made_beside_others_and_one_that_could_not_load_is_none() -> None:
    ray, ready = entered("a", "b", "c", "d", beside=("a", "b", "c"))
    assert [stage for stage, _ in ray.asked] == ["a", "b", "c"]
    ray.outcomes = {"a": ("said", b'{"failed": "no module"}'), "b": ("died", "killed"), "c": RayError("gone")}
    ready.look()
    for stage in "abcd":
        ready.ended(stage)
    assert ready.waiting == set()


def test_what_is_told_of_a_stage_whose_actor_went_counts_no_more() -> None:
    ray, ready = entered("a")
    ready.ended("a")
    ready.forget("a")
    ray.outcomes = {"a": ("said", IS_READY)}
    ready.look()
    assert ready.waiting == set()
    ready.entered("a", ray.actor("a"))
    assert len(ray.asked) == 1, "it is another actor's, of which nobody has said whether it is to have one"
