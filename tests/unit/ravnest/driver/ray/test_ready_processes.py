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
    ready.take("a")
    assert ready.waiting == set()
    ready.entered("a", ray.actor("a"))
    assert ray.asked[2:] == [("a", READY_AFTER_S)], "it is to have another one"


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
