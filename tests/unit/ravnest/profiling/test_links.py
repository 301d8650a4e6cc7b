from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from ravnest.profiling.agents import AgentCall, AgentNode, Unanswered
from ravnest.profiling.links import PINGED_PEERS, LinksMeasured, measure_links
from ravnest.profiling.pairing import Pair
from ravnest.profiling.probe_line import Arrivals, PingTimes

NAMES = ("a", "b", "c")
UPLINK, PAIR = 1_000_000, 800_000  # bytes/s


class Crew:
    """Three machines 10 ms from each other; `refuse` says what becomes of a transfer to several at once."""

    lost: Mapping[str, str] = {}
    members = tuple(AgentNode(name, None, 1) for name in NAMES)

    def __init__(self, refuse: str | None) -> None:
        self._refuse = refuse

    def ask(self, calls: Sequence[AgentCall], timeout_s: float) -> list[Any]:
        senders = {call.member for call in calls if call.method == "transfer"}
        return [self._answer(call, len(senders)) for call in calls]

    def _answer(self, call: AgentCall, senders: int) -> Any:
        if call.method == "ping":
            return PingTimes((0.02,) * 5, (0.0,) * 5)
        if call.method != "transfer":
            return call.member
        peers: Any = call.args[0]
        several = len(peers) > 1 or senders > 1
        if several and self._refuse is not None:
            return Unanswered(self._refuse) if self._refuse else Arrivals(dict.fromkeys(peers, ((0.0, 0),)), 5.0)
        rate = UPLINK // 2 if several else PAIR
        return Arrivals({p: tuple((i / 10, rate * i // 10) for i in range(51)) for p in peers}, 5.0)


def measured(refuse: str | None) -> LinksMeasured:
    facts: Any = {name: SimpleNamespace(machine_id=name, cores=1) for name in NAMES}
    return measure_links(Crew(refuse), facts, peers=4, seconds=5.0, seed=0, step=lambda step: None)


def test_each_step_says_how_far_it_is() -> None:
    told: list[tuple[str, list[float]]] = []
    facts: Any = {name: SimpleNamespace(machine_id=name, cores=1) for name in NAMES}
    measure_links(
        Crew(None),
        facts,
        peers=4,
        seconds=5.0,
        seed=0,
        step=lambda step: told.append((step, [])),
        part=lambda done: told[-1][1].append(done),
    )
    assert [step.split(" of ")[0] for step, _ in told] == ["latencies", "rates", "rates"]
    assert all(parts == sorted(parts) and len(parts) > 1 for _, parts in told)
    assert [parts[-1] for _, parts in told[:2]] == [1.0, 1.0]


def test_pairs_and_several_peers_at_once() -> None:
    found = measured(None)
    assert len(found.latencies) == 3
    assert {latency.seconds for latency in found.latencies.values()} == {0.01}
    assert {pair: rate.value for pair, rate in found.rates.items()} == pytest.approx(
        {(a, b): PAIR for a in NAMES for b in NAMES if a != b}
    )
    assert {name: estimate.value for name, (_, estimate) in found.sent.items()} == pytest.approx(
        dict.fromkeys(NAMES, UPLINK), rel=0.05
    )
    assert set(found.received) == set(NAMES)
    assert found.failed == found.alone == {}


@pytest.mark.parametrize(("refuse", "why"), [("it did not answer", "it did not answer"), ("", "blocks arrived")])
def test_an_uplink_that_was_only_measured_pair_by_pair_is_told(refuse: str, why: str) -> None:
    found = measured(refuse)
    assert found.sent == found.received == {}
    assert set(found.alone) == {f"the {way} of {name}" for way in ("uplink", "downlink") for name in NAMES}
    assert all(why in each for each in found.alone.values())
    assert len(found.rates) == 6


class ManyNodes:
    """On a line, `apart_s` from one to the next; each node answers only those that it has met, and `deaf` meet nobody.

    Fails the test where a call is given no more time than it may take by itself."""

    lost: Mapping[str, str] = {}

    def __init__(self, count: int, *, apart_s: float = 0.001, deaf: str = "") -> None:
        self.names = [f"n{i:02}" for i in range(count)]
        self.members = tuple(AgentNode(name, None, 1) for name in self.names)
        self.met: dict[str, set[str]] = {}
        self._apart_s, self._deaf = apart_s, deaf

    def seconds(self, a: str, b: str) -> float:
        return self._apart_s * abs(self.names.index(a) - self.names.index(b))

    def ask(self, calls: Sequence[AgentCall], timeout_s: float) -> list[Any]:
        own_s: Any = [call.args[-1] for call in calls if call.method in ("ping", "transfer")]
        assert all(timeout_s >= each + 5.0 for each in own_s)
        return [self._answer(call) for call in calls]

    def _answer(self, call: AgentCall) -> Any:
        if call.method == "listen":
            return f"address of {call.member}"
        if call.method == "meet" and call.member == self._deaf:
            return Unanswered("no socket")
        peers: Any = call.args[0]
        if call.method == "meet":
            assert all(at == f"address of {peer}" for peer, at in peers.items())
            self.met[call.member] = set(peers)
            return None
        asked = {peers} if call.method == "ping" else set(peers)
        assert asked <= self.met[call.member]
        assert all(call.member in self.met[peer] for peer in asked)
        if call.method == "ping":
            return PingTimes((2 * self.seconds(call.member, peers),) * 5, (0.0,) * 5)
        return Arrivals({p: tuple((i / 10, PAIR * i // 10) for i in range(51)) for p in peers}, 5.0)

    def measure(self, peers: int) -> LinksMeasured:
        facts: Any = {name: SimpleNamespace(machine_id=name, cores=1) for name in self.names}
        return measure_links(self, facts, peers=peers, seconds=5.0, seed=0, step=lambda step: None)


@pytest.mark.parametrize("peers", [6, 28])
def test_of_many_nodes_each_has_its_peers_and_the_farthest_of_those_it_pinged(peers: int) -> None:
    crew = ManyNodes(40)
    found = crew.measure(peers)
    transferred = {pair for pair in found.latencies if pair in found.rates and pair[::-1] in found.rates}
    assert len(found.latencies) < 40 * 39 / 2
    for name in crew.names:
        pinged = {_other(pair, name) for pair in found.latencies if name in pair}
        met = {_other(pair, name) for pair in transferred if name in pair}
        assert len(pinged) >= PINGED_PEERS
        assert len(met) >= peers
        assert max(crew.seconds(name, peer) for peer in pinged) == max(crew.seconds(name, peer) for peer in met)
        assert crew.met[name] == pinged
    assert found.failed == {}


def test_a_node_that_cannot_meet_its_peers_has_failed_and_costs_no_other_a_measurement() -> None:
    found = ManyNodes(4, deaf="n01").measure(6)
    assert found.failed == {("n01", "n01"): "cannot get to know its peers: no socket"}
    assert set(found.latencies) == {("n00", "n02"), ("n00", "n03"), ("n02", "n03")}


def test_transfers_over_very_late_links_are_waited_for_as_long_as_they_take() -> None:
    found = ManyNodes(3, apart_s=1.0).measure(6)
    assert len(found.rates) == 6


def _other(pair: Pair, name: str) -> str:
    return pair[1] if pair[0] == name else pair[0]
