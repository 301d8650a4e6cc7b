"""`doctor`: asks the agents on all machines whether a run would work there, and collects what would not.

In: what a run requires of the machines, and the job. Out: a report of findings. This module decides what is asked, in
which order and with which deadlines; findings.py decides what an answer means.
"""

import os
import secrets
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster_planner import Fleet, Plan, format_count
from ravnest.driver.ray.code_shipping import job_code
from ravnest.driver.ray.session import RaySession, silence_at
from ravnest.errors import RavnestError, RunFailed
from ravnest.job.config import Job, data_of_node, job_from_mapping
from ravnest.planning.workload import check_workload
from ravnest.profiling import findings as f
from ravnest.profiling.agents import (
    AgentCall,
    Agents,
    LocalAgents,
    MachineAgent,
    Reachability,
    Unanswered,
    reach_most_s,
)
from ravnest.profiling.findings import THIS_MACHINE, Finding, Requirements
from ravnest.profiling.machine_facts import CPU, DataFacts, JobFacts, MachineFacts, check_job, machine_facts
from ravnest.profiling.node_agents import RayAgents
from ravnest.profiling.pairing import Pair, in_rounds
from ring_allreduce.transport import TOKEN_BYTES, PeerAddress

TOKEN_FILE = "~/.ray/auth_token"
_COPY = (
    f"copy {TOKEN_FILE} from the head (there: `ray get-auth-token --generate`) by a channel you trust, readable by you"
    " alone"
)


def settings_findings(*, joins: bool) -> list[Finding]:
    """Findings about Ray's settings on this machine.

    `joins` says that a cluster is to be joined, which needs a token. A Ray that starts on this machine makes its own.
    """
    found = []
    mode = os.environ.get("RAY_AUTH_MODE", "token")
    if mode != "token":
        advice = "unset it, or set it to token: ravnest runs with Ray's authentication on"
        found.append(Finding("fails", THIS_MACHINE, f"has RAY_AUTH_MODE={mode}", advice))
    if os.environ.get("RAY_AUTH_TOKEN"):
        return found
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or TOKEN_FILE).expanduser()
    if not path.is_file():
        if joins:
            found.append(Finding("fails", THIS_MACHINE, f"has no token of Ray's in {path}", _COPY))
    elif path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        message = f"lets other users read Ray's token in {path}, who can then run code on all nodes"
        found.append(Finding("warns", THIS_MACHINE, message, f"chmod 600 {path}; on the other machines, too"))
    return found


def join_finding(reason: str) -> Finding:
    """Returns the finding that Ray refused the connection, for `reason`."""
    about_token = any(word in reason.lower() for word in ("token", "auth", "unauthenticated"))
    advice = _COPY if about_token else "see that Ray runs there, of the same version, and that its ports are open"
    return Finding("fails", THIS_MACHINE, reason, advice)


FACTS_S, JOB_S, LISTEN_S, REACH_S, PINGS_S = 90.0, 180.0, 60.0, 60.0, 60.0
PINGS, PING_DEADLINE_S = 4, 15.0
_INSTALL = "see that the same Python, torch and ravnest are installed there"
_LISTEN = "see that its `address` is its own and one at which the others reach it, and that ports are free there"

Step = Callable[[str], None]


@dataclass
class DoctorReport:
    """What would make a run fail or disappoint, and what was looked at to find out."""

    findings: list[f.Finding] = field(default_factory=list)
    facts: dict[str, MachineFacts] = field(default_factory=dict)
    pairs: list[Pair] = field(default_factory=list)
    latencies_s: dict[Pair, float] = field(default_factory=dict)

    @property
    def would_fail(self) -> bool:
        return any(finding.level == "fails" for finding in self.findings)


def examine(plan: Plan | None, fleet: Fleet | None, path: Path | None, address: str | None, step: Step) -> DoctorReport:
    """Checks the machines that a run would use.

    Arguments:
        plan: the plan that the machines are to fit, if there is one.
        fleet: the fleet that they are to fit, where there is no plan.
        path: the file that the plan or the fleet was read from.
        address: HOST:PORT of a running Ray cluster; None for this machine alone.
        step: is told of each slow step as it begins.

    Raises:
        InvalidInput: where the plan disagrees with its job, and for an address that is not of the form HOST:PORT.
    """
    job, job_file, needs = None, None, Requirements(())
    if plan is not None:
        place = path or Path("plan")
        job, job_file = job_from_mapping(plan.job, path=str(place), under="job."), Path(plan.job_file)
        check_workload(plan, job, place)
        needs = f.requirements_of_plan(plan)
    elif fleet is not None:
        needs = f.requirements_of_fleet(fleet)
    if address is None:
        return check_this_machine(needs, job, job_file, step)
    return check_cluster(address, needs, job, job_file, step)


def check_this_machine(needs: Requirements, job: Job | None, job_file: Path | None, step: Step) -> DoctorReport:
    """Checks this machine for a run without a Ray cluster, which would place all stages here.

    `job` and `job_file` say whose code is imported and whose data is read; None skips that. `step` is told of each
    slow step as it begins.
    """
    memory = {f.THIS_MACHINE: sum(needs.memory_bytes.values())} if needs.memory_bytes else {}
    devices = sorted({node.device for node in needs.nodes} - {CPU})
    nodes = [f.RequiredNode(f.THIS_MACHINE, device=device) for device in devices or [CPU]]
    host = {f.THIS_MACHINE: sum(needs.host_bytes.values())} if needs.host_bytes else {}
    own = Requirements(nodes[:1], memory_bytes=memory, host_bytes=host)
    crew = LocalAgents(f.THIS_MACHINE, len(os.sched_getaffinity(0)))
    checked = check_machines(crew, own, machine_facts(), None, step)
    seen = [device.name for each in checked.facts.values() for device in each.devices]
    for device in devices[1:]:
        checked.findings += f.device_findings({f.THIS_MACHINE: device}, {f.THIS_MACHINE: seen})
    checked.findings += settings_findings(joins=False)
    if job is not None and job_file is not None:
        step("importing the job's code and reading its data")
        checked.findings += check_jobs(crew, own, job, job_file, [])
    return checked


def check_cluster(
    address: str, needs: Requirements, job: Job | None, job_file: Path | None, step: Step
) -> DoctorReport:
    """Checks the machines of the Ray cluster at `address`; the other arguments are those of `check_this_machine`.

    Without any required node, all nodes that Ray has are required. What prevents joining the cluster is a finding, too.
    Raises InvalidInput where `address` is not of the form HOST:PORT.
    """
    settings = settings_findings(joins=True)
    silence = silence_at(address)
    if silence is not None:
        return DoctorReport([*settings, join_finding(f"reaches no Ray cluster at {address} ({silence})")])
    if any(finding.level == "fails" for finding in settings):
        return DoctorReport(settings)  # Ray would take a minute and more to say the same
    step(f"joining Ray at {address}")
    elsewhere = [node.data.factory for node in needs.nodes if node.data is not None and node.data.factory]
    code = None if job is None or job_file is None else job_code(job, job_file, elsewhere)
    if code is not None and code.notice is not None:
        settings.append(Finding("warns", THIS_MACHINE, f"has files {code.notice}", "the job's code may miss them"))
    try:
        session = RaySession(address, code)
    except RunFailed as error:
        return DoctorReport([*settings, join_finding(str(error))])
    planned = {node.name: node.address for node in needs.nodes} or None
    try:
        with RayAgents(session, {}, planned) as crew:
            if not needs.nodes:
                needs = f.requirements_of_members({member.name: member.address for member in crew.members})
            checked = check_machines(crew, needs, machine_facts(), session.host, step)
            gone = [text for node in crew.dead for text in (node.name, node.address) if text]
            there = {member.name for member in crew.members}
            missing = [node for node in needs.nodes if node.name not in there]
            checked.findings[:0] = [*settings, *f.missing_findings(missing, gone)]
            if job is not None and job_file is not None:
                step("importing the job's code and reading its data on the nodes")
                more = check_jobs(crew, needs, job, job_file, list(checked.facts))
                checked.findings += [finding for finding in more if finding not in checked.findings]
    finally:
        session.close()
    return checked


def check_machines(crew: Agents, needs: Requirements, here: MachineFacts, host: str | None, step: Step) -> DoctorReport:
    """Checks the nodes in `needs` that have an agent: versions, memory, devices, connections and clocks.

    Arguments:
        crew: the agents.
        needs: what a run requires of the nodes.
        here: the facts about this machine, to which the others are compared.
        host: the address of this process; None where this is the only machine, so that no connection is checked.
        step: is told of each slow step as it begins.
    """
    checked = DoctorReport()
    step(f"looking at {len(crew.members)} machine{'' if len(crew.members) == 1 else 's'}")
    there = {member.name for member in crew.members}
    names = [node.name for node in needs.nodes if node.name in there]
    checked.facts = _answers(crew, [AgentCall(name, "facts") for name in names], FACTS_S, checked, _INSTALL)
    facts = checked.facts
    versions = {name: _versions(each) for name, each in {f.THIS_MACHINE: here, **facts}.items()}
    checked.findings += f.version_findings(versions, f.THIS_MACHINE)
    nodes = [node for node in needs.nodes if node.name in facts]
    available = {name: each.available_bytes for name, each in facts.items()}
    machines = {each.machine_id: each.machine_available_bytes for each in facts.values()}
    shared = {name: (each.machine_id, machines[each.machine_id]) for name, each in facts.items()}
    of_machines = dict(available), dict(shared)
    for node in nodes:
        for device in facts[node.name].devices if node.device != CPU else ():
            if device.name in (node.device, f"{node.device}:0"):
                available[node.name] = device.free_bytes
                device_of = f"{facts[node.name].machine_id} {device.name}"
                shared[node.name] = device_of, machines.setdefault(device_of, device.free_bytes)
    checked.findings += f.memory_findings(needs.memory_bytes, available, shared)
    checked.findings += f.memory_findings(needs.host_bytes, *of_machines, "the machine's own memory")
    devices = {name: [device.name for device in each.devices] for name, each in facts.items()}
    checked.findings += f.device_findings({node.name: node.device for node in nodes}, devices)
    if host is not None:
        checked.findings += f.crowding_findings({name: each.machine_id for name, each in facts.items()})
        _check_links(crew, needs, host, checked, step)
    checked.findings += f.silent_findings(crew.lost)
    return checked


def check_jobs(crew: Agents, needs: Requirements, job: Job, job_file: Path, names: Sequence[str]) -> list[f.Finding]:
    """Checks that each node in `names` can import the job's code, and read the same data as this machine if it must."""
    own = check_job(job, str(job_file), reads_data=True)
    nodes = [node for node in needs.nodes if node.name in names]
    calls = [
        AgentCall(node.name, "check_job", (data_of_node(job, node.data), str(job_file), node.name in needs.readers))
        for node in nodes
    ]
    answers: dict[str, JobFacts] = {f.THIS_MACHINE: own}
    checked = DoctorReport()
    answers |= _answers(crew, calls, JOB_S, checked, _INSTALL)
    found = checked.findings
    found += f.job_findings({name: facts.problems for name, facts in answers.items()})
    data = {name: _data(facts.data) for name, facts in answers.items() if facts.data is not None}
    if f.THIS_MACHINE in data:
        found += f.data_findings(data, f.THIS_MACHINE)
    return [*found, *f.silent_findings(crew.lost)]


def _check_links(crew: Agents, needs: Requirements, host: str, checked: DoctorReport, step: Step) -> None:
    """Checks each pair that exchanges messages, and this machine with every node, in both directions."""
    token = secrets.token_bytes(TOKEN_BYTES)
    calls = [AgentCall(name, "listen", (token,)) for name in checked.facts]
    addresses: dict[str, PeerAddress] = _answers(crew, calls, LISTEN_S, checked, _LISTEN)
    step(f"connections of {format_count(len(addresses), 'node')}, both ways")
    own = MachineAgent(f.THIS_MACHINE, host)
    try:
        _connect(crew, own, token, addresses, needs, checked, step)
    finally:
        own.close()


def _connect(
    crew: Agents,
    own: MachineAgent,
    token: bytes,
    addresses: dict[str, PeerAddress],
    needs: Requirements,
    checked: DoctorReport,
    step: Step,
) -> None:
    there = list(addresses)
    try:
        addresses[f.THIS_MACHINE] = own.listen(token)
    except RavnestError as error:  # a run would fail here, too; the nodes are looked at all the same
        checked.findings.append(f.Finding("fails", f.THIS_MACHINE, str(error), _LISTEN))
    pairs = [pair for pair in needs.pairs if set(pair) <= addresses.keys()]
    wanted = [*((name, f.THIS_MACHINE) for name in there if f.THIS_MACHINE in addresses), *pairs]
    peers = {name: [_other(pair, name) for pair in wanted if name in pair] for name in addresses}
    meetings = {name: {peer: addresses[peer] for peer in peers[name]} for name in addresses}
    answers: dict[str, dict[str, Reachability]] = {}
    met = set(
        _answers(crew, [AgentCall(name, "meet", (meetings[name],)) for name in there], LISTEN_S, checked, _LISTEN)
    )
    if f.THIS_MACHINE in addresses:
        answers[f.THIS_MACHINE] = own.reach(meetings[f.THIS_MACHINE])
        try:
            own.meet(meetings[f.THIS_MACHINE])
            met.add(f.THIS_MACHINE)
        except RavnestError as error:
            checked.findings.append(f.Finding("fails", f.THIS_MACHINE, str(error), _LISTEN))
    reach_s = REACH_S + reach_most_s(max(map(len, meetings.values()), default=0))
    calls = [AgentCall(name, "reach", (meetings[name],)) for name in there if name in met]
    answers |= _answers(crew, calls, reach_s, checked, _LISTEN)
    refused = {
        (at, to): why
        for at, reaches in answers.items()
        for to, reach in reaches.items()
        if (why := reach.pipeline or reach.bulk) is not None
    }
    tried = {(at, to) for at, reaches in answers.items() for to in reaches}
    checked.findings += f.reach_findings(refused, tried)
    sound = [pair for pair in wanted if set(pair) <= met and not {pair, pair[::-1]} & refused.keys()]
    checked.pairs = [pair for pair in pairs if pair in sound]
    ping_pairs(crew, sound, needs, checked, step)


def ping_pairs(crew: Agents, pairs: Sequence[Pair], needs: Requirements, checked: DoctorReport, step: Step) -> None:
    """Checks that messages get an answer in both lanes, since a connection may be accepted and stay silent.

    The first of each pair is a node, which pings the second. Latencies and findings are added to `checked`.
    """
    mute: dict[Pair, str] = {}
    offsets = {}
    for lane in ("PIPELINE", "BULK"):
        step(f"messages between {len(pairs)} pairs, {lane.lower()} lane")
        # One ping a node at a time: an agent does what it is asked in turn, and behind the pings of mute peers, which
        # take long, its own answer would come too late and look as if it were silent itself.
        for turn in in_rounds((pair for pair in pairs if pair not in mute), lambda pair: pair[:1], len(pairs) or 1):
            calls = [AgentCall(a, "ping", (b, lane, PINGS, 0.0, PING_DEADLINE_S)) for a, b in turn]
            for pair, answer in zip(turn, crew.ask(calls, PINGS_S), strict=True):
                if isinstance(answer, Unanswered):
                    mute[pair] = f"messages get no answer: {answer.reason}"
                    continue
                best = min(range(len(answer.round_trips_s)), key=lambda i: answer.round_trips_s[i])
                checked.latencies_s[pair] = answer.round_trips_s[best] / 2
                if pair[1] == f.THIS_MACHINE:  # the node told of our clock beside its own
                    offsets[pair[0]] = -answer.clock_offsets_s[best], checked.latencies_s[pair]
    silent = {pair for pair in pairs if pair[0] in crew.lost}  # told as that
    both_ways = {way: why for pair, why in mute.items() if pair not in silent for way in (pair, pair[::-1])}
    tried = {way for pair in pairs if pair not in silent for way in (pair, pair[::-1])}
    checked.findings += f.reach_findings(both_ways, tried)
    checked.findings += f.clock_findings(offsets)
    checked.findings += f.latency_findings(checked.latencies_s, needs.latencies_s)


def _answers(
    crew: Agents, calls: Sequence[AgentCall], timeout_s: float, checked: DoctorReport, advice: str
) -> dict[str, Any]:
    """Returns the answers by node. Errors become findings, with `advice`; lost nodes are reported elsewhere."""
    answers = {}
    for call, answer in zip(calls, crew.ask(calls, timeout_s), strict=True):
        if not isinstance(answer, Unanswered):
            answers[call.member] = answer
        elif call.member not in crew.lost:
            checked.findings.append(f.Finding("fails", call.member, answer.reason, advice))
    return answers


def _versions(facts: MachineFacts) -> dict[str, str]:
    return {"python": facts.python, "ravnest": facts.ravnest, **facts.versions}


def _data(facts: DataFacts) -> tuple[int, int, str]:
    return facts.train, facts.held_out, facts.digest


def _other(pair: Pair, name: str) -> str:
    return pair[1] if pair[0] == name else pair[0]
