"""`doctor`: asks a crew what a run would need to be true, and collects what is not.

Decides what is asked, in which order, and the deadlines; what an answer means is findings.py's.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ravnest.errors import RavnestError
from ravnest.job import JobConfig, data_of_node
from ravnest.machines import findings as f
from ravnest.machines.agent import MachineAgent, Reach, reach_most_s
from ravnest.machines.checkup import Needs
from ravnest.machines.crew import Call, Crew, Unanswered
from ravnest.machines.facts import MachineFacts
from ravnest.machines.job_check import DataFacts, JobFacts, check_job
from ravnest.machines.pairing import Pair, in_rounds
from ring_allreduce.transport import PeerAddress

FACTS_S, JOB_S, LISTEN_S, REACH_S, PINGS_S = 90.0, 180.0, 60.0, 60.0, 60.0
PINGS, PING_DEADLINE_S = 4, 15.0
CPU = "cpu"
_TOKEN_BYTES = 16

Step = Callable[[str], None]


@dataclass
class Checked:
    """What was found, and what was looked at."""

    findings: list[f.Finding] = field(default_factory=list)
    facts: dict[str, MachineFacts] = field(default_factory=dict)
    pairs: list[Pair] = field(default_factory=list)
    latencies_s: dict[Pair, float] = field(default_factory=dict)

    @property
    def would_fail(self) -> bool:
        return any(finding.level == "fails" for finding in self.findings)


def check_machines(crew: Crew, needs: Needs, here: MachineFacts, host: str | None, step: Step) -> Checked:
    """Of the nodes in `needs` that the crew has: versions, memory, devices, whether they reach each other and this
    machine, clocks. `host`: the address of this process; None where it is the only machine."""
    checked = Checked()
    step(f"looking at {len(crew.members)} machine{'' if len(crew.members) == 1 else 's'}")
    there = {member.name for member in crew.members}
    names = [node.name for node in needs.nodes if node.name in there]
    for name, answer in zip(names, crew.ask([Call(name, "facts") for name in names], FACTS_S), strict=True):
        if isinstance(answer, MachineFacts):
            checked.facts[name] = answer
        elif name not in crew.lost:
            checked.findings.append(_failed(name, answer.reason))
    facts = checked.facts
    versions = {name: _versions(each) for name, each in {f.THIS_MACHINE: here, **facts}.items()}
    checked.findings += f.version_findings(versions, f.THIS_MACHINE)
    nodes = [node for node in needs.nodes if node.name in facts]
    available = {name: each.available_bytes for name, each in facts.items()}
    machines = {each.machine_id: each.machine_available_bytes for each in facts.values()}
    shared = {name: (each.machine_id, machines[each.machine_id]) for name, each in facts.items()}
    for node in nodes:
        for device in facts[node.name].devices if node.device != CPU else ():
            if device.name in (node.device, f"{node.device}:0"):
                available[node.name] = device.free_bytes
                device_of = f"{facts[node.name].machine_id} {device.name}"
                shared[node.name] = device_of, machines.setdefault(device_of, device.free_bytes)
    checked.findings += f.memory_findings(needs.memory_bytes, available, shared)
    devices = {name: [device.name for device in each.devices] for name, each in facts.items()}
    checked.findings += f.device_findings({node.name: node.device for node in nodes}, devices)
    if host is not None:
        checked.findings += f.crowding_findings({name: each.machine_id for name, each in facts.items()})
        _check_links(crew, needs, host, checked, step)
    checked.findings += f.silent_findings(crew.lost)
    return checked


def check_jobs(crew: Crew, needs: Needs, job: JobConfig, job_file: Path, names: Sequence[str]) -> list[f.Finding]:
    """Whether each of `names` can import the job's code, and read its data where it has to, as this machine does."""
    own = check_job(job, str(job_file), reads_data=True)
    nodes = [node for node in needs.nodes if node.name in names]
    calls = [
        Call(node.name, "check_job", (data_of_node(job, node.data), str(job_file), node.name in needs.readers))
        for node in nodes
    ]
    answers: dict[str, JobFacts] = {f.THIS_MACHINE: own}
    found = []
    for node, answer in zip(nodes, crew.ask(calls, JOB_S), strict=True):
        if isinstance(answer, JobFacts):
            answers[node.name] = answer
        elif node.name not in crew.lost:
            found.append(_failed(node.name, answer.reason))
    found += f.job_findings({name: facts.problems for name, facts in answers.items()})
    data = {name: _data(facts.data) for name, facts in answers.items() if facts.data is not None}
    if f.THIS_MACHINE in data:
        found += f.data_findings(data, f.THIS_MACHINE)
    return [*found, *f.silent_findings(crew.lost)]


def _check_links(crew: Crew, needs: Needs, host: str, checked: Checked, step: Step) -> None:
    """Each pair that exchanges, and this machine with every node, both ways."""
    token = secrets.token_bytes(_TOKEN_BYTES)
    names = list(checked.facts)
    addresses: dict[str, PeerAddress] = {}
    for name, answer in zip(names, crew.ask([Call(name, "listen", (token,)) for name in names], LISTEN_S), strict=True):
        if isinstance(answer, Unanswered):
            checked.findings.append(_failed(name, f"cannot listen for its peers: {answer.reason}"))
        else:
            addresses[name] = answer
    step(f"connections of {len(addresses)} nodes, both ways")
    own = MachineAgent(f.THIS_MACHINE, host)
    try:
        addresses[f.THIS_MACHINE] = own.listen(token)
        pairs = [pair for pair in needs.pairs if set(pair) <= addresses.keys()]
        wanted = [*pairs, *((f.THIS_MACHINE, name) for name in addresses if name != f.THIS_MACHINE)]
        peers = {name: [_other(pair, name) for pair in wanted if name in pair] for name in addresses}
        meetings = {name: {peer: addresses[peer] for peer in peers[name]} for name in addresses}
        there = [name for name in addresses if name != f.THIS_MACHINE]
        own.meet(meetings[f.THIS_MACHINE])
        crew.ask([Call(name, "meet", (meetings[name],)) for name in there], LISTEN_S)
        reach_s = REACH_S + reach_most_s(max(map(len, meetings.values())))
        reached = crew.ask([Call(name, "reach", (meetings[name],)) for name in there], reach_s)
        answers = dict(zip(there, reached, strict=True)) | {f.THIS_MACHINE: own.reach(meetings[f.THIS_MACHINE])}
        refused = _refused(answers)
        tried = {(at, to) for at, reaches in answers.items() if not isinstance(reaches, Unanswered) for to in reaches}
        checked.findings += f.reach_findings(refused, tried)
        sound = [pair for pair in wanted if pair not in refused and pair[::-1] not in refused]
        checked.pairs = [pair for pair in pairs if pair in sound]
        step(f"messages between {len(sound)} pairs")
        ping_pairs(crew, own, sound, needs, checked)
    finally:
        own.close()


def ping_pairs(crew: Crew, own: MachineAgent, pairs: Sequence[Pair], needs: Needs, checked: Checked) -> None:
    """Messages in both lanes, there and back: connections that are taken may still say nothing."""
    mute: dict[Pair, str] = {}
    for lane in ("PIPELINE", "BULK"):
        of_nodes = [pair for pair in pairs if f.THIS_MACHINE not in pair and pair not in mute]
        # One ping a node at a time: an agent does what it is asked in turn, and behind the pings of mute peers, which
        # take long, its own answer would come too late and look as if it were silent itself.
        for turn in in_rounds(of_nodes, lambda pair: pair[:1], len(of_nodes) or 1):
            calls = [Call(a, "ping", (b, lane, PINGS, 0.0, PING_DEADLINE_S)) for a, b in turn]
            for pair, answer in zip(turn, crew.ask(calls, PINGS_S), strict=True):
                if isinstance(answer, Unanswered):
                    mute[pair] = f"messages get no answer: {answer.reason}"
                else:
                    checked.latencies_s[pair] = min(answer.round_trips_s) / 2
    offsets = {}
    for _, name in (pair for pair in pairs if f.THIS_MACHINE in pair):
        try:
            times = own.ping(name, "PIPELINE", PINGS, 0.0, PING_DEADLINE_S)
        except RavnestError as error:
            mute[f.THIS_MACHINE, name] = f"messages get no answer: {error}"
            continue
        best = min(range(len(times.round_trips_s)), key=lambda i: times.round_trips_s[i])
        offsets[name] = times.clock_offsets_s[best], times.round_trips_s[best] / 2
    silent = {pair for pair in pairs if pair[0] in crew.lost}  # told as that
    both_ways = {way: why for pair, why in mute.items() if pair not in silent for way in (pair, pair[::-1])}
    tried = {way for pair in pairs if pair not in silent for way in (pair, pair[::-1])}
    checked.findings += f.reach_findings(both_ways, tried)
    checked.findings += f.clock_findings(offsets)
    checked.findings += f.latency_findings(checked.latencies_s, needs.latencies_s)


def _refused(answers: Mapping[str, Any]) -> dict[Pair, str]:
    refused = {}
    for at, reaches in answers.items():
        if isinstance(reaches, Unanswered):
            continue  # it is silent as a whole, and told as that
        for to, reach in reaches.items():
            assert isinstance(reach, Reach)
            why = reach.pipeline or reach.bulk
            if why is not None:
                refused[at, to] = why
    return refused


def _versions(facts: MachineFacts) -> dict[str, str]:
    return {"python": facts.python, "ravnest": facts.ravnest, **facts.versions}


def _data(facts: DataFacts) -> tuple[int, int, str]:
    return facts.train, facts.held_out, facts.digest


def _failed(name: str, reason: str) -> f.Finding:
    return f.Finding("fails", name, reason, "see that the same Python, torch and ravnest are installed there")


def _other(pair: Pair, name: str) -> str:
    return pair[1] if pair[0] == name else pair[0]
