"""Who is blamed by `doctor`, with a crew whose agents do one thing after the other, as Ray's actors do."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from ravnest.errors import RunFailed
from ravnest.profiling import doctor as doctor
from ravnest.profiling.agents import AgentCall, AgentNode, Reachability, Unanswered
from ravnest.profiling.doctor import PING_DEADLINE_S, DoctorReport, check_machines, ping_pairs
from ravnest.profiling.findings import THIS_MACHINE, Requirements, requirements_of_members
from ravnest.profiling.machine_facts import MachineFacts
from ravnest.profiling.pairing import Pair
from ravnest.profiling.probe_line import PingTimes
from ring_allreduce.transport import PeerAddress

ANSWERED = PingTimes((0.01,) * 4, (0.0,) * 4)


class Crew:
    """`mute` nodes take connections and answer nothing: each ping of one takes its whole deadline."""

    members: Sequence[AgentNode] = ()

    def __init__(self, mute: str) -> None:
        self.lost: dict[str, str] = {}
        self._mute = mute
        self.took_s = 0.0

    def ask(self, calls: Sequence[AgentCall], timeout_s: float) -> list[Any]:
        busy_s: Counter[str] = Counter()
        answers = [self._answer(call, busy_s, timeout_s) for call in calls]
        self.took_s += max(busy_s.values(), default=0.0)
        return answers

    def _answer(self, call: AgentCall, busy_s: Counter[str], timeout_s: float) -> Any:
        peer: Any = call.args[0]
        deadline_s: Any = call.args[4]
        silent = peer in self._mute or call.member in self._mute
        busy_s[call.member] += deadline_s if silent else 0
        if busy_s[call.member] > timeout_s:
            self.lost[call.member] = f"did not answer within {timeout_s:.0f} s"
        return Unanswered(self.lost.get(call.member, "no answer")) if silent else ANSWERED


def blamed(nodes: str, mute: str, pairs: Sequence[Pair]) -> tuple[list[str], dict[str, str]]:
    """Who is named, and whom the crew took for lost."""
    crew, checked = Crew(mute), DoctorReport()
    ping_pairs(crew, [*((name, THIS_MACHINE) for name in nodes), *pairs], Requirements(()), checked, lambda step: None)
    return [finding.about for finding in checked.findings], crew.lost


def test_a_node_with_many_mute_peers_is_not_blamed_for_them() -> None:
    named, lost = blamed("habcdef", "abcdef", [("h", peer) for peer in "abcdef"])
    assert named == list("abcdef")
    assert lost == {}


def test_the_mute_one_of_many_is() -> None:
    nodes = "abcdefg"
    named, lost = blamed(nodes, "a", [(x, y) for x in nodes for y in nodes if x < y])
    assert named == ["a"]
    assert lost == {}


def test_nobody_is_where_all_answer() -> None:
    assert blamed("abc", "", [("a", "b"), ("b", "c")]) == ([], {})


def test_many_mute_nodes_are_pinged_from_here_at_the_same_time() -> None:
    crew, checked = Crew(mute="abcdefghij"), DoctorReport()
    steps: list[str] = []
    ping_pairs(crew, [(name, THIS_MACHINE) for name in "abcdefghij"], Requirements(()), checked, steps.append)
    assert crew.took_s == PING_DEADLINE_S
    assert [finding.level for finding in checked.findings] == ["fails"] * len(checked.findings) != []
    assert len(steps) == 2


def test_clocks_are_told_as_they_are_beside_this_machines() -> None:
    class Ahead(Crew):
        def ask(self, calls: Sequence[AgentCall], timeout_s: float) -> list[Any]:
            return [PingTimes((0.02, 0.01), (-8.5, -9.0)) for _ in calls]  # ours, beside theirs

    checked = DoctorReport()
    ping_pairs(Ahead(""), [("a", THIS_MACHINE)], Requirements(()), checked, lambda step: None)
    assert [(each.about, each.message) for each in checked.findings] == [("a", "has a clock that is 9.0 s ahead")]


FACTS = MachineFacts("host", "one", "3.11.7", "0.1.0", {}, 4, 8 * 10**9, 8 * 10**9, 8 * 10**9, (), 0.0, 0.0)


class Sound(Crew):
    """Nodes that reach each other; of `failing` the method of that name gives an error."""

    def __init__(self, names: str, failing: dict[str, str]) -> None:
        super().__init__("")
        self.members = [AgentNode(name, None, 4) for name in names]
        self._failing = failing

    def _answer(self, call: AgentCall, busy_s: Counter[str], timeout_s: float) -> Any:
        if self._failing.get(call.member) == call.method:
            return Unanswered("no socket")
        first: Any = call.args[0] if call.args else None
        assert call.method != "ping" or first != THIS_MACHINE or not Here.deaf
        if call.method == "facts":
            return replace(FACTS, machine_id=call.member)
        if call.method == "reach":
            return {peer: Reachability(None, None) for peer in first}
        return {"listen": PeerAddress("127.0.0.1", 1, 2), "meet": None, "ping": ANSWERED}[call.method]


class Here:
    """This machine's own end. `fails`: its method that does."""

    fails = ""
    deaf = False
    """Whether it knows no node, so that none should ask it anything."""

    def __init__(self, name: str, host: str) -> None:
        pass

    def listen(self, token: bytes) -> PeerAddress:
        self._unless("listen")
        return PeerAddress("127.0.0.1", 3, 4)

    def meet(self, peers: dict[str, PeerAddress]) -> None:
        self._unless("meet")

    def reach(self, peers: dict[str, PeerAddress]) -> dict[str, Reachability]:
        return {peer: Reachability(None, None) for peer in peers}

    def close(self) -> None:
        pass

    def _unless(self, method: str) -> None:
        if self.fails == method:
            raise RunFailed("this machine has no socket")


def checked_nodes(
    monkeypatch: pytest.MonkeyPatch, *, here: str = "", failing: dict[str, str] | None = None
) -> DoctorReport:
    monkeypatch.setattr(Here, "fails", here)
    monkeypatch.setattr(Here, "deaf", bool(here))
    monkeypatch.setattr(doctor, "MachineAgent", Here)
    needs = requirements_of_members(dict.fromkeys("abc", "10.0.0.1"))
    return check_machines(Sound("abc", failing or {}), needs, FACTS, "127.0.0.1", lambda step: None)


def test_sound_nodes_have_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    found = checked_nodes(monkeypatch)
    assert found.findings == []
    assert found.pairs == [("a", "b"), ("a", "c"), ("b", "c")]


@pytest.mark.parametrize("method", ["listen", "meet"])
def test_this_machine_without_a_socket_is_a_finding_beside_the_others(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    found = checked_nodes(monkeypatch, here=method, failing={"c": "listen"})
    assert [(each.about, each.message) for each in found.findings if each.level == "fails"] == [
        ("c", "no socket"),
        (THIS_MACHINE, "this machine has no socket"),
    ]
    assert found.pairs == [("a", "b")]


@pytest.mark.parametrize("method", ["meet", "reach"])
def test_a_node_that_answers_a_step_with_an_error_is_named(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    found = checked_nodes(monkeypatch, failing={"b": method})
    assert [(each.about, each.message) for each in found.findings] == [("b", "no socket")]
    assert ("a", "c") in found.pairs
