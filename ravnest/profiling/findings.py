"""What a run requires of machines, and the findings where they do not meet it, in words and with advice.

In: a plan or a fleet, and facts about machines and links. Out: requirements and findings, which name nodes and pairs.
A finding says what would make a run fail, or be slower or stranger than planned. The module is pure: each function
judges facts of one kind and looks at nothing itself. The requirements of a plan are its stages and the pairs that
exchange messages; those of nodes.yaml are all of its nodes and pairs.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from typing import Literal

from cluster_planner import CUDA_HOST_BYTES, Fleet, Node, NodeData, Plan, SpanCosts
from ravnest.formatting import duration, size
from ravnest.profiling.pairing import ALL_PAIRS_UP_TO, Pair, sampled_pairs

SAMPLED_PEERS = 6


@dataclass(frozen=True)
class RequiredNode:
    """A node that a run would use, with its address, its device and its own data factory, where it has them."""

    name: str
    address: str | None = None
    device: str = "cpu"
    data: NodeData | None = None


@dataclass(frozen=True)
class Requirements:
    """What a run requires of nodes and pairs.

    `latencies_s` are the planned latencies one way, by pair. `memory_bytes` is what the stages of a node need, by node.
    `readers` are the nodes that read the data.
    """

    nodes: Sequence[RequiredNode]
    pairs: Sequence[Pair] = ()
    latencies_s: Mapping[Pair, float] = field(default_factory=dict)
    memory_bytes: Mapping[str, int] = field(default_factory=dict)
    host_bytes: Mapping[str, int] = field(default_factory=dict)
    """What stages that compute on a GPU take of their machine's own memory, by node."""
    readers: frozenset[str] = frozenset()


def requirements_of_plan(plan: Plan) -> Requirements:
    """Returns the requirements for the nodes that have a stage in `plan`. Nothing is required of spares."""
    memory: dict[str, int] = {}
    host: dict[str, int] = {}
    spans = SpanCosts(plan.costs, plan.workload)
    pairs: set[Pair] = set()
    readers: set[str] = set()
    for cluster, predicted in zip(plan.clusters, plan.predicted.clusters, strict=True):
        names = [stage.node for stage in cluster.stages]
        readers |= {names[0], names[-1]}
        pairs |= {_pair(a, b) for a, b in pairwise(names) if a != b}
        for stage, needs in zip(cluster.stages, predicted.stages, strict=True):
            node = plan.fleet.node(stage.node)
            memory[node.name] = memory.get(node.name, 0) + needs.memory_bytes + node.beyond_bytes
            if node.device != "cpu":
                own = CUDA_HOST_BYTES + spans.host_bytes(*stage.units, cluster.window)
                host[node.name] = host.get(node.name, 0) + own
    for ring in plan.rings:
        members = [plan.cluster(cluster).stages[stage].node for cluster, stage in ring.members]
        pairs |= {_pair(a, b) for a, b in combinations(dict.fromkeys(members), 2)}
    used = [_wanted(node) for node in plan.fleet.nodes if node.name in memory]
    return Requirements(used, sorted(pairs), _latencies(plan.fleet, pairs), memory, host, frozenset(readers))


def requirements_of_fleet(fleet: Fleet) -> Requirements:
    """Returns the requirements for all nodes of a fleet, and for all of its pairs, or a sample of many pairs."""
    pairs = _pairs(fleet.names)
    return Requirements([_wanted(node) for node in fleet.nodes], pairs, _latencies(fleet, pairs))


def requirements_of_members(addresses: Mapping[str, str | None]) -> Requirements:
    """Says what requirements_of_fleet does, for nodes of which only names and addresses are known."""
    return Requirements([RequiredNode(name, address) for name, address in addresses.items()], _pairs(list(addresses)))


def _pairs(names: Sequence[str]) -> Sequence[Pair]:
    if len(names) > ALL_PAIRS_UP_TO:
        return sampled_pairs(names, SAMPLED_PEERS, 0)
    return sorted(_pair(a, b) for a, b in combinations(names, 2))


def _wanted(node: Node) -> RequiredNode:
    return RequiredNode(node.name, node.address, node.device, node.data)


def _latencies(fleet: Fleet, pairs: Sequence[Pair] | set[Pair]) -> dict[Pair, float]:
    known = {_pair(link.a, link.b): link.latency_s for link in fleet.links}
    return {pair: known[pair] for pair in pairs if pair in known}


def _pair(a: str, b: str) -> Pair:
    return (a, b) if a <= b else (b, a)


LEAST_TRIES = 2
"""So many attempts with a node must have failed before it is blamed, since one failure may be either end's."""


@dataclass(frozen=True)
class CutOff:
    """The nodes to blame for failed attempts, by direction, and all attempts. A node may be in both directions."""

    receives_nothing: frozenset[str]
    sends_nothing: frozenset[str]
    succeeded: frozenset[Pair]
    failed: frozenset[Pair]

    def explains(self, attempt: Pair) -> bool:
        """Says whether one of the blamed nodes explains why `attempt` failed."""
        return attempt[0] in self.sends_nothing or attempt[1] in self.receives_nothing

    def lies_between(self, attempt: Pair) -> bool:
        """Says whether the sender has reached others and the receiver was reached by others, so that neither is to
        blame.
        """
        out = any(a == attempt[0] for a, _ in self.succeeded)
        return out and any(b == attempt[1] for _, b in self.succeeded)

    def peers(self, node: str) -> list[str]:
        """Returns the peers with which `node` failed in the directions that it is blamed for."""
        met = {a for a, b in self.failed if b == node and node in self.receives_nothing}
        return sorted(met | {b for a, b in self.failed if a == node and node in self.sends_nothing})


def cut_off(tried: Collection[Pair], failed: Set[Pair]) -> CutOff:
    """Finds the nodes to blame; `tried` has every attempt as (from, to), including those that `failed`.

    A node is blamed for a direction in which nothing succeeded, if several peers tried and one of them has reached
    another node.
    """
    succeeded = frozenset(set(tried) - failed)
    sending, receiving = {a for a, _ in succeeded}, {b for _, b in succeeded}
    deaf, dumb = set(), set()
    for node in {name for pair in failed for name in pair}:
        senders = {a for a, b in failed if b == node}
        if node not in receiving and len(senders) >= LEAST_TRIES and senders & sending:
            deaf.add(node)
        receivers = {b for a, b in failed if a == node}
        if node not in sending and len(receivers) >= LEAST_TRIES and receivers & receiving:
            dumb.add(node)
    return CutOff(frozenset(deaf), frozenset(dumb), succeeded, frozenset(failed))


Level = Literal["fails", "warns"]

MOST_CLOCK_S = 5.0
"""Clocks that differ by more make the times in logs misleading; nothing else depends on clocks."""

SLOWER_THAN_PLANNED = 1.5
LATER_S = 0.005
THIS_MACHINE = "this machine"
_MOST_NAMED = 8


@dataclass(frozen=True)
class Finding:
    """Something that would make a run fail or that it should be warned of.

    `about` is a node, a pair or this machine; `advice` says what to do.
    """

    level: Level
    about: str
    message: str
    advice: str


def version_findings(versions: Mapping[str, Mapping[str, str]], reference: str) -> list[Finding]:
    """Nodes that have other versions than the node `reference`. `versions` maps nodes to packages to versions."""
    found = []
    for node, theirs in versions.items():
        for what, wanted in versions[reference].items():
            has = theirs.get(what, "not installed")
            if _comparable(what, has) != _comparable(what, wanted):
                advice = f"install the same {what} on both: stages that differ compute or talk differently"
                found.append(Finding("fails", node, f"has {what} {has}, and {reference} has {wanted}", advice))
    return found


def _comparable(what: str, version: str) -> str:
    """Returns the part of a version that must be equal: patch releases of Python may differ."""
    return version.rpartition(".")[0] if what == "python" else version


def missing_findings(missing: Sequence[RequiredNode], dead: Sequence[str]) -> list[Finding]:
    """Planned nodes that are not live nodes of Ray. `dead` are those that Ray has lost, by name or address."""
    found = []
    for node in missing:
        start = f"`ray start --address … --resources '{{\"ravnest-{node.name}\": 1}}'`"
        if node.name in dead or node.address in dead:
            found.append(Finding("fails", node.name, "was part of Ray and is no longer", f"start it again: {start}"))
        else:
            where = f"is at {node.address} or " if node.address else ""
            advice = f"start it there with {start}, with the same token in ~/.ray/auth_token and RAY_AUTH_MODE=token"
            message = f"is no part of Ray: no live node {where}has the resource ravnest-{node.name}"
            found.append(Finding("fails", node.name, message, advice))
    return found


def silent_findings(lost: Mapping[str, str]) -> list[Finding]:
    """Nodes that stopped answering; `lost` has the reason by node."""
    advice = "see whether the machine is up and reachable on Ray's ports, and start Ray there again"
    return [Finding("fails", node, f"{why}; Ray listed it as alive", advice) for node, why in sorted(lost.items())]


def memory_findings(
    needed: Mapping[str, int],
    available: Mapping[str, int],
    shared: Mapping[str, tuple[str, int]],
    kind: str = "memory",
) -> list[Finding]:
    """Nodes with too little free memory, alone or together with others that share it. All figures are bytes by node.

    `shared` names the memory that a node's is part of, a machine's or a device's, and how much of that is free. `kind`:
    how messages call the memory.
    """
    advice = "end what else runs there, or plan again with the memory that is free (ravnest profile --merge)"
    message = f"of {kind} free, and the plan needs"
    found = [
        Finding("fails", node, f"has {size(available[node])} {message} {size(bytes_)} there", advice)
        for node, bytes_ in needed.items()
        if node in available and available[node] < bytes_
    ]
    named = {finding.about for finding in found}
    for place in dict.fromkeys(shared.values()):
        nodes = [node for node in needed if shared.get(node) == place]
        together = sum(needed[node] for node in nodes)
        if len(nodes) > 1 and together > place[1] and not named.intersection(nodes):
            said = f"share {size(place[1])} {message} {size(together)} there"
            found.append(Finding("fails", ", ".join(nodes), said, advice))
    return found


def device_findings(wanted: Mapping[str, str], there: Mapping[str, Sequence[str]]) -> list[Finding]:
    """Nodes that lack the device that the plan names. `wanted` has that device, `there` the CUDA devices, by node."""
    found = []
    for node, device in wanted.items():
        kind, _, index = device.partition(":")
        name = f"{kind}:{index or 0}"
        if kind != "cpu" and node in there and name not in there[node]:
            has = ", ".join(there[node]) or "none"
            advice = "see its driver (nvidia-smi) and whether torch was installed with CUDA, or change `device`"
            found.append(Finding("fails", node, f"has no device {device}; torch finds there: {has}", advice))
    return found


def reach_findings(refused: Mapping[Pair, str], tried: Collection[Pair]) -> list[Finding]:
    """Connections that failed. `refused` has the reason by (from, to); `tried` has all attempts.

    A node that is cut off is named once, instead of its pairs. For another pair the finding says what is known of its
    two ends.
    """
    blamed = cut_off(tried, refused.keys())
    found = [_cut_off_finding(node, blamed, refused) for node in sorted(blamed.receives_nothing | blamed.sends_nothing)]
    advice = (
        "let {to} accept TCP from {at} on all ports of the private network (ravnest's are chosen anew for each run),"
        " and check that `address` is one at which the others reach it"
    )
    left = {pair: why for pair, why in refused.items() if not blamed.explains(pair)}
    both = {frozenset(pair) for pair in left if (pair[1], pair[0]) in left}
    for (at, to), why in sorted(left.items()):
        between = blamed.lies_between((at, to)) and (frozenset((at, to)) not in both or blamed.lies_between((to, at)))
        whose = "both reach others, so look between the two" if between else "which of the two is at fault is not known"
        if frozenset((at, to)) in both:
            if at < to:
                message = f"cannot reach each other: {why} ({whose})"
                found.append(Finding("fails", f"{at} – {to}", message, advice.format(to="each", at="the other")))
        else:
            message = f"cannot connect: {why} ({whose})"
            found.append(Finding("fails", f"{at} → {to}", message, advice.format(to=to, at=at)))
    return found


def _cut_off_finding(node: str, blamed: CutOff, refused: Mapping[Pair, str]) -> Finding:
    peers = blamed.peers(node)
    named = ", ".join(peers[:_MOST_NAMED]) + (f" and {len(peers) - _MOST_NAMED} more" * (len(peers) > _MOST_NAMED))
    if node not in blamed.sends_nothing:
        what = f"takes no connection of the {len(peers)} that tried"
    elif node not in blamed.receives_nothing:
        what = f"gets no connection to the {len(peers)} that it tried"
    else:
        what = f"is cut off from all {len(peers)} that it was tried with"
    why = next(refused[pair] for pair in sorted(refused) if node in pair)
    advice = (
        "others reach each other, so look here first: its firewall must let TCP through on all ports of the private"
        " network (ravnest's are chosen anew for each run), and `address` must be one at which the others reach it"
    )
    return Finding("fails", node, f"{what} ({named}): {why}", advice)


def latency_findings(
    measured: Mapping[tuple[str, str], float], planned: Mapping[tuple[str, str], float]
) -> list[Finding]:
    """Pairs with much higher latencies than planned. Both arguments are seconds one way, by pair."""
    return [
        Finding(
            "warns",
            f"{a} – {b}",
            f"take {duration(seconds)} one way, and the plan was made with {duration(planned[a, b])}",
            "measure again (ravnest profile --merge) and plan again: windows may be too small",
        )
        for (a, b), seconds in sorted(measured.items())
        if (a, b) in planned and seconds > SLOWER_THAN_PLANNED * planned[a, b] + LATER_S
    ]


def clock_findings(offsets_s: Mapping[str, tuple[float, float]]) -> list[Finding]:
    """Nodes whose clock is wrong. By node: its clock less that of this machine, and the error of that, in seconds."""
    return [
        Finding(
            "warns",
            node,
            f"has a clock that is {duration(abs(offset))} {'ahead' if offset > 0 else 'behind'}",
            "let it follow a time server (timedatectl set-ntp true): times in its logs mislead",
        )
        for node, (offset, error) in sorted(offsets_s.items())
        if abs(offset) - error > MOST_CLOCK_S
    ]


def job_findings(problems: Mapping[str, Sequence[str]]) -> list[Finding]:
    """Nodes that cannot import the job's code or read its data; `problems` has a line for each problem, by node."""
    advice = (
        "code comes from the job's folder; libraries that it imports must be installed on the node; data must be where"
        " job.yaml or that node's `data` in nodes.yaml says"
    )
    return [Finding("fails", node, line, advice) for node, lines in sorted(problems.items()) for line in lines]


def data_findings(data: Mapping[str, tuple[int, int, str]], reference: str) -> list[Finding]:
    """Nodes that read other data than the node `reference`.

    `data` has training samples, held-out samples and a digest by node. An empty digest cannot be compared.
    """
    found = []
    here = data[reference]
    advice = "give all nodes the same data: the first and the last stage pick samples by number, each from its own copy"
    for node, there in sorted(data.items()):
        if there[:2] != here[:2]:
            counts = f"{there[0]:,} training and {there[1]:,} held-out samples"
            message = f"reads {counts}, and {reference} {here[0]:,} and {here[1]:,}"
            found.append(Finding("fails", node, message, advice))
        elif there[2] and here[2] and there[2] != here[2]:
            found.append(Finding("fails", node, f"reads other samples than {reference} under the same numbers", advice))
    return found


def crowding_findings(machine_of: Mapping[str, str]) -> list[Finding]:
    """Nodes that share a machine. `machine_of` has the id of the machine by node."""
    counts = Counter(machine_of.values())
    shared = [name for name, machine in machine_of.items() if counts[machine] > 1]
    if not shared:
        return []
    advice = "fine for a trial; speeds hold only where each has its own processors"
    return [Finding("warns", ", ".join(sorted(shared)), "share one machine", advice)]
