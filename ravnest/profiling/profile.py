"""`profile`: asks the agents what their machines are, how fast they are and what joins them, and makes a fleet of it.

In: agents and what the user wants measured. Out: a measured fleet, with everything that was measured. This module
decides the order (facts, speeds, links), the deadlines, and which devices of a machine become nodes: its GPUs where it
has any, else its processors.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from cluster_planner import Fleet
from ravnest.errors import RunFailed
from ravnest.job.config import Job
from ravnest.profiling import benchmark_work
from ravnest.profiling.agents import AgentCall, AgentNode, Agents, Unanswered
from ravnest.profiling.benchmark_work import BenchmarkWork, work_of
from ravnest.profiling.links import LinksMeasured, measure_links
from ravnest.profiling.machine_facts import CPU, MachineFacts
from ravnest.profiling.measured_fleet import MeasuredFleet, NodeMeasured, Rates, free_to_use, measured_fleet, merged
from ravnest.profiling.memory_traffic import UnitKind, flops_per_byte, flops_per_s
from ravnest.profiling.pairing import in_rounds
from ravnest.profiling.speed import Speed

FACTS_S = 180.0
SPEED_S = 5.0
SPEED_DEADLINE_S = 300.0
BUSY_SHARE = 0.5


@dataclass(frozen=True)
class ProfileRequest:
    """What the user wants measured."""

    job: Job | None
    job_file: Path | None
    peers: int
    seconds: float
    """How long each transfer takes."""
    seed: int
    beside: Fleet | None = None
    """The fleet beside whose speeds, those of nodes that are not measured now, the measured ones are to stand."""


@dataclass(frozen=True)
class Profile:
    """What was measured. `missing` says what could not be measured, a sentence each."""

    measured: MeasuredFleet
    work: str
    speeds: Mapping[str, Speed]
    links: LinksMeasured
    facts: Mapping[str, MachineFacts]
    notes: Sequence[str] = field(default_factory=tuple)
    missing: Sequence[str] = field(default_factory=tuple)

    @property
    def fleet(self) -> Fleet:
        """The machines and links that were measured."""
        return self.measured.fleet

    def merged_into(self, known: Fleet) -> Fleet:
        """Returns the fleet `known` with the measured figures in place of its own; see measured_fleet.merged."""
        return merged(self.measured, known)


def profile(
    crew: Agents,
    asked: ProfileRequest,
    step: Callable[[str], None],
    part: Callable[[float], None] = lambda done: None,
) -> Profile:
    """Measures all machines and the links between them. `step` is told of each slow step as it begins, and `part` how
    far it is, from 0 to 1, where that is known.

    Raises InvalidInput for a job that cannot be captured, and RunFailed where no machine could be measured at all.
    """
    step(f"looking at {len(crew.members)} machine{'s' if len(crew.members) > 1 else ''}")
    facts, missing = gather_facts(crew)
    if not facts:
        raise RunFailed(f"no machine answered: {'; '.join(missing)}")
    step("capturing the job's model" if asked.job is not None else "preparing the default kind of work")
    # What a machine with cards is measured by is held by these.
    free_bytes = min((each.available_bytes for each in facts.values() if not each.devices), default=None)
    work = _work(asked, free_bytes, [device.free_bytes for each in facts.values() for device in each.devices])
    speeds, unmeasured = _speeds(crew, facts, work, step)
    traffic, speeds = with_traffic(work.kinds, speeds, known_traffic(asked.beside, speeds))
    links = LinksMeasured()
    if len(facts) > 1:
        links = measure_links(
            crew, facts, peers=asked.peers, seconds=asked.seconds, seed=asked.seed, step=step, part=part
        )
    members = {member.name: member for member in crew.members}
    nodes = [
        node for name, each in facts.items() for node in _nodes(members[name], each, speeds, _sharing(facts, name))
    ]
    if not any(node.flops_per_s for node in nodes):
        raise RunFailed(f"no machine's speed could be measured: {'; '.join(unmeasured)}")
    rates = Rates(
        links.rates,
        {name: rate for name, (_, rate) in links.sent.items()},
        {name: rate for name, (_, rate) in links.received.items()},
        links.latencies,
        links.failed,
    )
    measured = measured_fleet(nodes, rates, traffic)
    missing += [*unmeasured, *_failures(links)]
    missing += [f"{name} {why}" for name, why in crew.lost.items() if name in facts]
    words = benchmark_work.DESCRIPTION if asked.job is None else f"the units of {asked.job_file}"
    return Profile(measured, words, speeds, links, facts, [*measured.notes, *_crowded(facts)], missing)


def gather_facts(crew: Agents) -> tuple[dict[str, MachineFacts], list[str]]:
    """Returns the facts by node, and a sentence for each node that did not answer."""
    calls = [AgentCall(member.name, "facts") for member in crew.members]
    facts, missing = {}, []
    for call, answer in zip(calls, crew.ask(calls, FACTS_S), strict=True):
        if isinstance(answer, Unanswered):
            missing.append(f"{call.member} {answer.reason}")
        else:
            facts[call.member] = answer
    return facts, missing


def _work(asked: ProfileRequest, free_bytes: int | None, card_bytes: Sequence[int]) -> BenchmarkWork:
    if asked.job is not None and asked.job_file is not None:
        return work_of(asked.job, asked.job_file, free_bytes, card_bytes)
    return work_of(benchmark_work.benchmark_job(), benchmark_work.DEFAULT_JOB_FILE, free_bytes, card_bytes)


def _speeds(
    crew: Agents, facts: Mapping[str, MachineFacts], work: BenchmarkWork, step: Callable[[str], None]
) -> tuple[dict[str, Speed], list[str]]:
    """Returns the speeds by the name of the new node, and a sentence for each that could not be measured.

    The devices of one machine take turns, so that each has the machine to itself.
    """
    cores = {member.name: member.cores for member in crew.members}
    tasks = [(name, device) for name, each in facts.items() for device in _devices(each)]
    speeds, missing = {}, []
    for round_ in in_rounds(tasks, lambda task: {facts[task[0]].machine_id}, len(tasks)):
        step(f"the speed of {', '.join(_node_name(name, device) for name, device in round_)}")
        calls = [AgentCall(name, "speed", (work, device, cores[name], SPEED_S)) for name, device in round_]
        for (name, device), answer in zip(round_, crew.ask(calls, SPEED_DEADLINE_S), strict=True):
            if isinstance(answer, Unanswered):
                missing.append(f"the speed of {_node_name(name, device)} could not be measured: {answer.reason}")
            else:
                speeds[_node_name(name, device)] = answer
    return speeds, missing


def known_traffic(beside: Fleet | None, measured: Collection[str]) -> float | None:
    """Returns the `flops_per_byte` of the fleet beside, where it has nodes that were not `measured`: their speeds go
    with it. None: it may be another one."""
    return None if beside is None or set(beside.names) <= set(measured) else beside.flops_per_byte


def with_traffic(
    kinds: Sequence[UnitKind], speeds: Mapping[str, Speed], known: float | None = None
) -> tuple[float, dict[str, Speed]]:
    """Returns what moving a byte takes, in FLOPs, where it is not known, and the speeds that go with it."""
    traffic = flops_per_byte(kinds, [speed.kind_s for speed in speeds.values()]) if known is None else known

    def told(speed: Speed) -> Speed:
        return replace(speed, flops_per_s=replace(speed.flops_per_s, value=flops_per_s(kinds, speed.kind_s, traffic)))

    return traffic, {name: told(speed) for name, speed in speeds.items()}


def _nodes(member: AgentNode, facts: MachineFacts, speeds: Mapping[str, Speed], shared_by: int) -> list[NodeMeasured]:
    free = {device.name: free_to_use(device.free_bytes, device.memory_bytes, 1) for device in facts.devices}
    own = facts.available_bytes, facts.memory_bytes
    free[CPU] = free_to_use(*own, shared_by)
    return [
        NodeMeasured(
            name=(name := _node_name(member.name, device)),
            machine=member.name,
            address=member.address,
            device=device,
            flops_per_s=speeds[name].flops_per_s if name in speeds else None,
            memory_bytes=free[device],
            process_bytes=speeds[name].process_bytes if name in speeds else None,
            host_memory_bytes=None if device == CPU else free_to_use(*own, shared_by * len(facts.devices)),
        )
        for device in _devices(facts)
    ]


def _devices(facts: MachineFacts) -> list[str]:
    return [device.name for device in facts.devices] or [CPU]


def _node_name(machine: str, device: str) -> str:
    kind, _, index = device.partition(":")
    return machine if kind == CPU else f"{machine}-gpu{index}"


def _sharing(facts: Mapping[str, MachineFacts], name: str) -> int:
    return sum(each.machine_id == facts[name].machine_id for each in facts.values())


def _crowded(facts: Mapping[str, MachineFacts]) -> list[str]:
    notes = [
        f"{name} was busy before it was measured (load {each.load:.1f} on {each.cores} cores): speeds may be too low"
        for name, each in facts.items()
        if each.load > BUSY_SHARE * each.cores
    ]
    several = [name for name in facts if _sharing(facts, name) > 1]
    if several:
        notes.append(
            f"{', '.join(several)} are on machines that they share: each was measured alone, memory is divided"
        )
    return notes


def _failures(links: LinksMeasured) -> list[str]:
    failed = [
        f"{a} could not be measured with others: {why}" if a == b else f"{a} to {b}: {why}"
        for (a, b), why in links.failed.items()
    ]
    return [*failed, *(f"{what}, with several peers at once: {why}" for what, why in links.alone.items())]
