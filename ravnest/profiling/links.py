"""Measures the links between nodes: pings and transfers between pairs, and transfers with several peers at once.

In: agents and what their machines are. Out: latencies and rates, and what could not be measured. This module decides
the order of the measurements, how many run at the same time, and their deadlines; estimates.py makes figures of them.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cluster_planner import format_count
from ravnest.profiling.agents import AgentCall, Agents, Unanswered
from ravnest.profiling.estimates import MeasuredFigure, MeasuredLatency, latency, sustained, together
from ravnest.profiling.machine_facts import MachineFacts
from ravnest.profiling.pairing import ALL_PAIRS_UP_TO, Pair, all_pairs, in_rounds, sampled_pairs
from ring_allreduce.transport import TOKEN_BYTES

LISTEN_S = 60.0
PINGS, PING_S, PING_DEADLINE_S = 30, 1.5, 20.0
TRANSFER_GRACE_S = 20.0
PINGED_PEERS = 24
STAR_PEERS = 4

Step = Callable[[str], None]


@dataclass(frozen=True)
class StarTransfer:
    """A node, and the peers with which it exchanges data at the same time."""

    center: str
    peers: tuple[str, ...]


@dataclass
class LinksMeasured:
    """What was measured of links.

    `rates` are in bytes/s by (sender, receiver). `sent` and `received` are the rates of one node with several peers at
    once. `failed` has the reason for each pair (sender, receiver) that could not be measured. `alone` has the reason
    for each uplink or downlink that could not be measured with several peers; single pairs then stand for it.
    """

    latencies: dict[Pair, MeasuredLatency] = field(default_factory=dict)
    rates: dict[Pair, MeasuredFigure] = field(default_factory=dict)
    sent: dict[str, tuple[StarTransfer, MeasuredFigure]] = field(default_factory=dict)
    received: dict[str, tuple[StarTransfer, MeasuredFigure]] = field(default_factory=dict)
    failed: dict[Pair, str] = field(default_factory=dict)
    alone: dict[str, str] = field(default_factory=dict)


def measure_links(
    crew: Agents,
    facts: Mapping[str, MachineFacts],
    *,
    peers: int,
    seconds: float,
    seed: int,
    step: Step,
    part: Callable[[float], None] = lambda done: None,
) -> LinksMeasured:
    """Measures the links of all nodes in `facts`.

    Arguments:
        crew: the agents on the nodes.
        peers: with how many others each node exchanges data, where there are too many nodes for all pairs.
        seconds: the length of a transfer.
        seed: of the choice of peers.
        step: is told of each slow step as it begins.
        part: is told how far it is, from 0 to 1.
    """
    return _Measuring(crew, list(facts), concurrently(facts), peers, seconds, seed, (step, part)).run()


def concurrently(facts: Mapping[str, MachineFacts]) -> int:
    """Returns how many measurements may run at once; nodes on one machine share its processors."""
    machines = [each.machine_id for each in facts.values()]
    crowded = [name for name, each in facts.items() if machines.count(each.machine_id) > 1]
    return len(facts) if not crowded else max(1, facts[crowded[0]].cores // 2)


class _Measuring:
    def __init__(
        self,
        crew: Agents,
        names: list[str],
        at_once: int,
        peers: int,
        seconds: float,
        seed: int,
        told: tuple[Step, Callable[[float], None]],
    ) -> None:
        self._crew, self._names, self._at_once = crew, names, at_once
        self._peers, self._seconds, self._seed = peers, seconds, seed
        self._step, self._part = told
        self._found = LinksMeasured()

    def run(self) -> LinksMeasured:
        pairs = self._meet()
        rounds = in_rounds(pairs, set, self._at_once)
        self._step(f"latencies of {len(pairs)} pairs")
        for number, together_ in enumerate(rounds, 1):
            self._ping(together_)
            self._ping([(b, a) for a, b in together_])
            self._part(number / len(rounds))
        pairs = self._pairs(self._peers, {pair: known.seconds for pair, known in self._found.latencies.items()})
        rounds = in_rounds(pairs, set, self._at_once)
        self._step(f"rates of {len(pairs)} pairs, each way, {self._seconds:g} s each")
        for number, together_ in enumerate(rounds, 1):
            self._transfer(together_)
            self._transfer([(b, a) for a, b in together_])
            self._part(number / len(rounds))
        self._stars()
        return self._found

    def _pairs(self, peers: int, distances: Mapping[Pair, float] | None) -> list[Pair]:
        """Returns all pairs of few nodes, or a sample of many; only pairs in `distances`, where that is given."""
        if len(self._names) <= max(ALL_PAIRS_UP_TO, peers + 1):
            pairs = [_pair(*pair) for round_ in all_pairs(self._names) for pair in round_]
            return pairs if distances is None else [pair for pair in pairs if pair in distances]
        return sampled_pairs(self._names, peers, self._seed, distances)

    def _meet(self) -> list[Pair]:
        """Lets the nodes listen and makes them known to their peers; returns the pairs to measure."""
        token = secrets.token_bytes(TOKEN_BYTES)
        addresses = self._each({name: AgentCall(name, "listen", (token,)) for name in self._names}, "")
        self._names = list(addresses)
        pairs = self._pairs(max(PINGED_PEERS, self._peers), None)
        peers: dict[str, dict[str, object]] = {name: {} for name in self._names}
        for a, b in pairs:
            peers[a][b], peers[b][a] = addresses[b], addresses[a]
        calls = {name: AgentCall(name, "meet", (peers[name],)) for name in self._names}
        self._names = list(self._each(calls, "cannot get to know its peers: "))
        return [pair for pair in pairs if set(pair) <= set(self._names)]

    def _each(self, calls: Mapping[str, AgentCall], what: str) -> dict[str, object]:
        """Returns the answers by node. A node without an answer is noted as failed, with `what` before the reason."""
        found = {}
        for name, answer in zip(calls, self._crew.ask(list(calls.values()), LISTEN_S), strict=True):
            if isinstance(answer, Unanswered):
                self._found.failed[name, name] = what + answer.reason
            else:
                found[name] = answer
        return found

    def _ping(self, pairs: Sequence[Pair]) -> None:
        calls = [AgentCall(a, "ping", (b, "PIPELINE", PINGS, PING_S, PING_DEADLINE_S)) for a, b in pairs]
        for pair, answer in zip(pairs, self._crew.ask(calls, 2 * PING_DEADLINE_S), strict=True):
            if isinstance(answer, Unanswered):
                self._found.failed[pair] = answer.reason
                continue
            found, key = latency(answer.round_trips_s), _pair(*pair)
            before = self._found.latencies.get(key)
            # The other direction measures the same round trip: the less disturbed of the two counts.
            self._found.latencies[key] = found if before is None or found.seconds < before.seconds else before

    def _transfer(self, pairs: Sequence[Pair]) -> None:
        wanted = [pair for pair in pairs if pair not in self._found.failed]
        calls = [self._sending(a, (b,)) for a, b in wanted]
        answers = self._crew.ask(calls, _longest_s(calls))
        for (a, b), answer in zip(wanted, answers, strict=True):
            self._note({(a, b): answer})

    def _stars(self) -> None:
        rates = self._found.rates
        stars = [star for name in self._names if len((star := star_of(name, rates, sending=True)).peers) > 1]
        if stars:
            self._step(f"rates of {format_count(len(stars), 'node')} with several peers at once")
        sending = in_rounds(stars, lambda star: {star.center, *star.peers}, self._at_once)
        stars = [star for name in self._names if len((star := star_of(name, rates, sending=False)).peers) > 1]
        receiving = in_rounds(stars, lambda star: {star.center, *star.peers}, self._at_once)
        for number, round_ in enumerate(sending):
            self._part(number / (len(sending) + len(receiving)))
            calls = [self._sending(star.center, star.peers) for star in round_]
            answers = self._crew.ask(calls, _longest_s(calls))
            for star, answer in zip(round_, answers, strict=True):
                key = f"the uplink of {star.center}"
                if isinstance(answer, Unanswered):
                    self._found.alone[key] = answer.reason
                    continue
                parts = [answer.by_peer[peer] for peer in star.peers]
                try:
                    self._found.sent[star.center] = star, together(parts, answer.until_s)
                except ValueError as error:
                    self._found.alone[key] = str(error)
        for number, round_ in enumerate(receiving, len(sending)):
            self._part(number / (len(sending) + len(receiving)))
            pairs = [(peer, star.center) for star in round_ for peer in star.peers]
            calls = [self._sending(peer, (center,)) for peer, center in pairs]
            answers = self._crew.ask(calls, _longest_s(calls))
            by_pair = dict(zip(pairs, answers, strict=True))
            for star in round_:
                key = f"the downlink of {star.center}"
                of_star = [by_pair[peer, star.center] for peer in star.peers]
                if silent := [answer.reason for answer in of_star if isinstance(answer, Unanswered)]:
                    self._found.alone[key] = silent[0]
                    continue
                # Each on its sender's clock since it was asked, which was at the same time.
                parts = [answer.by_peer[star.center] for answer in of_star]
                until_s = min(answer.until_s for answer in of_star)
                try:
                    self._found.received[star.center] = star, together(parts, until_s)
                except ValueError as error:
                    self._found.alone[key] = str(error)

    def _sending(self, sender: str, peers: tuple[str, ...]) -> AgentCall:
        slowest = max((self._found.latencies[_pair(sender, peer)].seconds for peer in peers), default=0.0)
        seconds = max(self._seconds, 30 * slowest)
        return AgentCall(sender, "transfer", (peers, seconds, seconds + TRANSFER_GRACE_S))

    def _note(self, answers: Mapping[Pair, object]) -> None:
        for (a, b), answer in answers.items():
            if isinstance(answer, Unanswered):
                self._found.failed[a, b] = answer.reason
                continue
            try:
                self._found.rates[a, b] = sustained(answer.by_peer[b], answer.until_s)  # type: ignore[attr-defined]
            except ValueError as error:
                self._found.failed[a, b] = str(error)


def _longest_s(calls: Sequence[AgentCall]) -> float:
    """Returns how long to wait for transfers: their own deadlines, which depend on latencies, and the time for the
    call.
    """
    deadlines: list[Any] = [call.args[-1] for call in calls]
    return max(deadlines, default=0.0) + TRANSFER_GRACE_S


def star_of(name: str, rates: Mapping[Pair, MeasuredFigure], *, sending: bool) -> StarTransfer:
    """Returns the node `name` with the peers to which (or, unless `sending`, from which) it had the highest rates."""
    there = {(b if sending else a): rate.value for (a, b), rate in rates.items() if name == (a if sending else b)}
    return StarTransfer(name, tuple(sorted(there, key=lambda peer: (-there[peer], peer))[:STAR_PEERS]))


def _pair(a: str, b: str) -> Pair:
    return (a, b) if a <= b else (b, a)
