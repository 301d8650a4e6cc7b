from collections.abc import Mapping
from pathlib import Path

import pytest

from cluster_planner import Fleet, Node
from ravnest.driver.node_requests import NodeRequest, take_requests
from ravnest.driver.ray.session import RayNode
from ravnest.errors import InvalidInput, RunFailed
from ravnest.profiling.appearing import TRIES, Appearing, addressed, let_in, watch


def planned(name: str, address: str | None = None) -> Node:
    return Node(
        name=name, flops_per_s=1e9, memory_bytes=10**9, up_bytes_per_s=1e6, down_bytes_per_s=1e6, address=address
    )


def node(address: str, name: str | None = None, *, alive: bool = True, works: bool = True, number: int = 0) -> RayNode:
    return RayNode(f"id-{address}-{number}", address, name, 1, f"host-{address}", alive, works)


def test_only_nodes_that_come_later_and_are_not_planned_appear_and_each_once() -> None:
    appearing = Appearing(Fleet((planned("desk"), planned("tower", "10.0.0.2"))))
    first = [node("10.0.0.1", "desk"), node("10.0.0.9"), node("10.0.0.8", works=False)]
    assert appearing.look(first) == {}
    later = [*first, node("10.0.0.2"), node("10.0.0.3"), node("10.0.0.4", "new"), node("10.0.0.5", alive=False)]
    found = appearing.look(later)
    assert {name: each.address for name, each in found.items()} == {"host-10.0.0.3": "10.0.0.3", "new": "10.0.0.4"}
    assert appearing.look(later) == {}
    again = appearing.look([*later, node("10.0.0.3", number=1)])
    assert list(again) == ["host-10.0.0.3"], "its Ray was started again"


def test_a_node_that_cannot_be_let_in_is_tried_again_some_times(tmp_path: Path) -> None:
    """A disk that is full, or a node that is not ready, ended the watch, or kept the node out for good."""
    appearing, told, refuses = Appearing(Fleet((planned("desk"),))), list[str](), True
    run, nodes = tmp_path / "run", [node("10.0.0.3", "new")]

    def measure(found: Mapping[str, RayNode]) -> Fleet:
        if refuses:
            raise RunFailed("it does not answer")
        return Fleet(tuple(planned(name) for name in found))

    appearing.look([])
    for _ in range(TRIES - 1):
        let_in(run, appearing.look(nodes), measure, appearing, told.append)
        refuses = False  # then there is no folder yet to leave a request in
    assert [each.endswith("it is tried again") for each in told] == [True] * len(told)
    run.mkdir()
    let_in(run, appearing.look(nodes), measure, appearing, told.append)
    assert told[-1] == "new asks to join"
    assert [each.node for each in take_requests(run) if isinstance(each, NodeRequest)] == ["new"]
    assert appearing.look(nodes) == {}

    refuses, nodes = True, [*nodes, node("10.0.0.4", "other")]
    for _ in range(TRIES):
        let_in(run, appearing.look(nodes), measure, appearing, told.append)
    assert told[-1] == "other cannot join: it does not answer; that is not tried any more"
    assert appearing.look(nodes) == {}


def test_nodes_of_one_machine_are_found_by_their_resources_alone() -> None:
    fleet = addressed(Fleet((planned("new", "10.0.0.4"), planned("other", "10.0.0.4"))), {"new"})
    assert [each.address for each in fleet.nodes] == [None, "10.0.0.4"]


def test_a_folder_without_a_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no run goes on here"):
        watch(tmp_path, "192.0.2.1:6379", print, lambda: True)
