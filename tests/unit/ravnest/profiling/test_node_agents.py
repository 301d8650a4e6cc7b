from types import SimpleNamespace
from typing import Any

from ravnest.driver.ray.session import RayNode
from ravnest.profiling.agents import AgentCall, Unanswered
from ravnest.profiling.findings import silent_findings
from ravnest.profiling.node_agents import RayAgents, named_nodes, planned_nodes


def node(address: str, name: str | None = None, hostname: str = "vm", works: bool = True) -> RayNode:
    return RayNode(f"id-{address}", address, name, 1, hostname, True, works)


def test_nodes_are_called_as_the_file_then_as_their_resource_then_as_their_host() -> None:
    nodes = [node("10.0.0.1"), node("10.0.0.2", "laptop"), node("10.0.0.3", hostname="attic")]
    named = named_nodes(nodes, {"10.0.0.1": "desk"})
    assert {name: each.address for name, each in named.items()} == {
        "desk": "10.0.0.1",
        "laptop": "10.0.0.2",
        "attic": "10.0.0.3",
    }


def test_hosts_of_one_name_are_told_apart_by_address_and_names_given_twice_by_id() -> None:
    assert set(named_nodes([node("10.0.0.1"), node("10.0.0.2")], {})) == {"vm-10.0.0.1", "vm-10.0.0.2"}
    twice = named_nodes([node("10.0.0.1", "gpu"), node("10.0.0.2", "gpu")], {})
    assert len(twice) == 2


def test_nodes_of_one_machine_are_all_found_there() -> None:
    found = planned_nodes([node("10.0.0.1")], {"box-gpu0": "10.0.0.1", "box-gpu1": "10.0.0.1"})
    assert {name: each.address for name, each in found.items()} == {"box-gpu0": "10.0.0.1", "box-gpu1": "10.0.0.1"}


def test_of_planned_nodes_those_are_found_that_a_run_finds() -> None:
    alive = [
        node("10.0.0.1", hostname="attic"),
        node("10.0.0.2", works=False),
        node("10.0.0.3", "desk"),
        node("10.0.0.4", "moved"),
    ]
    planned = {"attic": None, "head": "10.0.0.2", "desk": None, "moved": "10.0.0.9"}
    found = planned_nodes(alive, planned)
    assert {name: each.address for name, each in found.items()} == {
        "head": "10.0.0.2",  # started with --num-cpus 0: a run takes it
        "desk": "10.0.0.3",
        "moved": "10.0.0.4",
    }
    assert "attic" not in found  # a host's name is none that a run looks for


def test_a_planned_node_is_found_by_address_or_resource() -> None:
    assert node("10.0.0.1").is_of("desk", "10.0.0.1")
    assert node("10.0.0.9", "desk").is_of("desk", None)
    assert not node("10.0.0.9").is_of("desk", None)


class Actors:
    """Of Ray, what a crew uses; each answer is an error."""

    def __init__(self, error: type[Exception]) -> None:
        self.exceptions = SimpleNamespace(RayError=error, RayTaskError=type("RayTaskError", (Exception,), {}))
        self._error = error

    def remote(self, _: type) -> Any:
        method = SimpleNamespace(remote=lambda *_: object())
        return SimpleNamespace(
            options=lambda **_: SimpleNamespace(remote=lambda *_, **__: SimpleNamespace(facts=method))
        )

    def wait(self, asked: list[object], num_returns: int, timeout: float) -> tuple[list[object], list[object]]:
        return asked, []

    def get(self, _: object) -> None:
        raise self._error("The actor died unexpectedly before finishing this task.\nmore")


def test_a_node_whose_agent_is_gone_is_not_said_to_have_ended_for_certain() -> None:
    session: Any = SimpleNamespace(
        ray=Actors(type("ActorDied", (Exception,), {})),
        nodes=lambda: [node("10.0.0.1", "desk"), node("10.0.0.2", "laptop")],
        on_node=lambda _: {},
        ships_code=False,
        host="10.0.0.1",
    )
    crew = RayAgents(session, {}, {"laptop": None})
    assert [member.name for member in crew.members] == ["laptop"]
    (answer,) = crew.ask([AgentCall("laptop", "facts")], 1.0)
    assert isinstance(answer, Unanswered)
    (found,) = silent_findings(crew.lost)
    assert found.about == "laptop"
    assert found.message.startswith("is no longer reachable, or its process ended (The actor died unexpectedly")
