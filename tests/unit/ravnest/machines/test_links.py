from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from ravnest.machines.crew import Call, Member, Unanswered
from ravnest.machines.links import LinksMeasured, measure_links
from ravnest.machines.probe_line import Arrivals, PingTimes

NAMES = ("a", "b", "c")
UPLINK, PAIR = 1_000_000, 800_000  # bytes/s


class Crew:
    """Three machines 10 ms from each other; `refuse` says what becomes of a transfer to several at once."""

    lost: Mapping[str, str] = {}
    members = tuple(Member(name, None, 1) for name in NAMES)

    def __init__(self, refuse: str | None) -> None:
        self._refuse = refuse

    def ask(self, calls: Sequence[Call], timeout_s: float) -> list[Any]:
        senders = {call.member for call in calls if call.method == "transfer"}
        return [self._answer(call, len(senders)) for call in calls]

    def _answer(self, call: Call, senders: int) -> Any:
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
