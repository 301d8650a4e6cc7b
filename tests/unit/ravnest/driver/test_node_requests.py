from pathlib import Path

import pytest

from cluster_planner import Fleet, Node, hours_from
from ravnest.driver.node_requests import MOST_WAITING, NodeRequest, RunRequest, asked, put_request, take_requests
from ravnest.errors import InvalidInput
from ravnest.recovery import HourWatch


def test_each_request_is_taken_once_and_in_order(tmp_path: Path) -> None:
    requests = [NodeRequest("leave", "old phone"), NodeRequest("join", "old phone"), NodeRequest("leave", "desk:2")]
    for request in requests:
        put_request(tmp_path, request)
    assert take_requests(tmp_path) == requests
    assert take_requests(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_the_clock_asks_too_and_says_why(tmp_path: Path) -> None:
    evening = Node(
        name="tower",
        flops_per_s=1.0,
        memory_bytes=1,
        up_bytes_per_s=1.0,
        down_bytes_per_s=1.0,
        hours=hours_from("18-22"),
    )
    hours = HourWatch([evening])
    put_request(tmp_path, NodeRequest("leave", "desk"))
    assert asked(tmp_path, hours, 19 * 3600.0) == [NodeRequest("leave", "desk")]
    [request] = asked(tmp_path, hours, 22 * 3600.0)
    assert (request.kind, request.node) == ("leave", "tower")
    assert "18-22" in request.why
    assert asked(tmp_path, None, 22 * 3600.0) == []


def test_what_is_known_of_a_node_comes_with_the_request(tmp_path: Path) -> None:
    node = Node(name="new", flops_per_s=2e9, memory_bytes=10**9, up_bytes_per_s=1e6, down_bytes_per_s=2e6)
    put_request(tmp_path, NodeRequest("join", "new", fleet=Fleet((node,))))
    put_request(tmp_path, NodeRequest("join", "torn", fleet=Fleet((node,))))
    (*_, last) = sorted(tmp_path.glob("*.nodes.yaml"))
    last.write_text("nodes: [")
    assert take_requests(tmp_path) == [NodeRequest("join", "new", fleet=Fleet((node,))), NodeRequest("join", "torn")]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"kind": []}', '{"kind": "leave"}', '{"kind": "burn", "node": "a"}', "[" * 5000]
)
def test_what_is_no_request_is_thrown_away(tmp_path: Path, text: str) -> None:
    (tmp_path / ".request-1.json").write_text(text)
    assert take_requests(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be written"):
        put_request(tmp_path / "none", NodeRequest("leave", "desk"))
    assert take_requests(tmp_path / "none") == []


def test_requests_that_nobody_takes_are_bounded(tmp_path: Path) -> None:
    for number in range(MOST_WAITING):
        (tmp_path / f".request-{number}.json").touch()
    with pytest.raises(InvalidInput, match="nobody takes them"):
        put_request(tmp_path, NodeRequest("leave", "desk"))


def test_those_of_other_kinds_are_left_for_whoever_takes_them(tmp_path: Path) -> None:
    for request in (RunRequest("checkpoint"), NodeRequest("leave", "desk"), RunRequest("stop")):
        put_request(tmp_path, request)
    assert take_requests(tmp_path, ("stop", "stop_now")) == [RunRequest("stop")]
    assert take_requests(tmp_path) == [RunRequest("checkpoint"), NodeRequest("leave", "desk")]
