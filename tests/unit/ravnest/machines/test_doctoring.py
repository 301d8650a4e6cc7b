"""Who is blamed by `doctor`, with a crew whose agents do one thing after the other, as Ray's actors do."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ravnest.errors import RunFailed
from ravnest.machines.checkup import Needs
from ravnest.machines.crew import Call, Member, Unanswered
from ravnest.machines.doctoring import Checked, ping_pairs
from ravnest.machines.findings import THIS_MACHINE
from ravnest.machines.pairing import Pair
from ravnest.machines.probe_line import PingTimes

ANSWERED = PingTimes((0.01,) * 4, (0.0,) * 4)


class Crew:
    """`mute` nodes take connections and answer nothing: each ping of one takes its whole deadline."""

    members: Sequence[Member] = ()

    def __init__(self, mute: str) -> None:
        self.lost: dict[str, str] = {}
        self._mute = mute

    def ask(self, calls: Sequence[Call], timeout_s: float) -> list[Any]:
        busy_s: Counter[str] = Counter()
        return [self._answer(call, busy_s, timeout_s) for call in calls]

    def _answer(self, call: Call, busy_s: Counter[str], timeout_s: float) -> Any:
        peer: Any = call.args[0]
        deadline_s: Any = call.args[4]
        silent = peer in self._mute or call.member in self._mute
        busy_s[call.member] += deadline_s if silent else 0
        if busy_s[call.member] > timeout_s:
            self.lost[call.member] = f"did not answer within {timeout_s:.0f} s"
        return Unanswered(self.lost.get(call.member, "no answer")) if silent else ANSWERED


class Own:
    def __init__(self, mute: str) -> None:
        self._mute = mute

    def ping(self, peer: str, *_: object) -> PingTimes:
        if peer in self._mute:
            raise RunFailed("no answer")
        return ANSWERED


def blamed(nodes: str, mute: str, pairs: Sequence[Pair]) -> tuple[list[str], dict[str, str]]:
    """Who is named, and whom the crew took for lost."""
    crew, checked = Crew(mute), Checked()
    own: Any = Own(mute)
    ping_pairs(crew, own, [*pairs, *((THIS_MACHINE, name) for name in nodes)], Needs(()), checked)
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
