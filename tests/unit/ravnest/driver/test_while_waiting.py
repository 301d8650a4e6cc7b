from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cluster_planner import Fleet, Plan
from ravnest.driver.node_requests import NodeRequest, RunRequest, put_request, take_requests
from ravnest.driver.observe.place_events import NodeJoinedEvent
from ravnest.driver.while_waiting import wants_end, with_who_came
from ravnest.errors import Interrupted
from ravnest.recovery import NodesLeft

NOBODY = cast("Any", SimpleNamespace(wanted=False))


def test_a_user_ends_it_by_a_request_or_a_signal(tmp_path: Path) -> None:
    assert not wants_end(NOBODY, tmp_path, NodesLeft())
    assert wants_end(cast("Any", SimpleNamespace(wanted=True)), tmp_path, NodesLeft())
    put_request(tmp_path, RunRequest("stop"))
    with pytest.raises(Interrupted, match="--resume"):
        wants_end(NOBODY, tmp_path, NodesLeft())


def test_of_nodes_it_takes_those_that_had_left(tmp_path: Path) -> None:
    left = NodesLeft()
    left.leave("a")
    for node in ("a", "b"):
        put_request(tmp_path, NodeRequest("join", node))
    assert not wants_end(NOBODY, tmp_path, left)
    assert left.names == frozenset()
    assert [each.node for each in take_requests(tmp_path) if isinstance(each, NodeRequest)] == ["b"]


def test_the_plan_gets_who_came_and_others_are_told_why_not(tmp_path: Path, plan: Plan) -> None:
    known, left = plan.fleet.nodes[0], NodesLeft()
    left.leave(known.name)
    new = replace(known, name="new")
    for request in (
        NodeRequest("join", "new", fleet=Fleet((new,))),
        NodeRequest("join", "nobody"),
        NodeRequest("join", "other", fleet=Fleet((new,))),
        NodeRequest("join", known.name),
    ):
        put_request(tmp_path, request)
    put_request(tmp_path, RunRequest("checkpoint"))
    events, notices = list[NodeJoinedEvent](), list[str]()
    grown = with_who_came(tmp_path, plan, left, events.append, notices.append)
    assert grown.fleet.names == (*plan.fleet.names, "new")
    assert [spare.node for spare in grown.spares][-1] == "new"
    assert [event.node for event in events] == ["new"]
    assert [said.split(" ")[:1] for said in notices] == [["no"], ["node"]]
    assert left.names == frozenset()
    assert take_requests(tmp_path) == [RunRequest("checkpoint")], "it is for later"
    assert with_who_came(tmp_path, plan, left, events.append, notices.append) is plan
