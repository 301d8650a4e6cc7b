"""Makes a fleet that `ravnest plan` takes from what was measured, with notes about the figures.

In: measured nodes and rates, and perhaps a fleet of the user's to merge them into. Out: a fleet and notes. The module
is pure; it decides which uplink and downlink a node gets, which link a pair gets, and which figures are uncertain.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from cluster_planner import Fleet, Link, Node, bytes_of_gb, bytes_per_s_of_mbps, flops_per_s_of_gflops, seconds_of_ms
from ravnest.profiling.estimates import MeasuredFigure, MeasuredLatency
from ravnest.profiling.pairing import Pair

MBPS = 125_000.0
UNMEASURED_BYTES_PER_S = 100 * MBPS
"""The rate that is assumed for a machine with which no data was exchanged."""

SATURATED = 0.9
"""A node's own limit was reached if several peers at once had less than this share of the sum of their single rates."""

ASYMMETRIC = 1.25
"""There is a note where a direction carried less than the nodes' rates promise by more than this factor."""
RESERVE_SHARE, RESERVE_BYTES = 0.05, 512 * 10**6
"""The share of a machine's memory, and the least bytes, that are left to its owner beside what is in use already."""


@dataclass(frozen=True)
class NodeMeasured:
    """A node of the new fleet: a machine's processors or one of its GPUs. `flops_per_s` is None if unmeasured."""

    name: str
    machine: str
    """The agent's node that it belongs to."""
    address: str | None
    device: str
    flops_per_s: MeasuredFigure | None
    memory_bytes: int
    process_bytes: int | None = None
    """What a process takes of a GPU's memory beside its tensors."""
    host_memory_bytes: int | None = None
    """Of a GPU: what its stage's process may hold of the machine's own memory."""


@dataclass(frozen=True)
class Rates:
    """What was measured of transfers between the agents' nodes, in bytes/s."""

    pairs: Mapping[Pair, MeasuredFigure]
    sent: Mapping[str, MeasuredFigure]
    """The rate of a node to several peers at once; `received` is the rate from several."""
    received: Mapping[str, MeasuredFigure]
    latencies: Mapping[Pair, MeasuredLatency]
    failed: Collection[Pair] = ()
    """The pairs (sender, receiver) that were tried without success."""


@dataclass(frozen=True)
class MeasuredFleet:
    """A fleet, and notes about its figures, a sentence each.

    The fields `…_assumed` have the nodes and pairs whose rates are assumed, since a fleet needs a rate for them.
    """

    fleet: Fleet
    notes: Sequence[str] = ()
    up_assumed: frozenset[str] = frozenset()
    down_assumed: frozenset[str] = frozenset()
    links_assumed: frozenset[frozenset[str]] = frozenset()


def free_to_use(available_bytes: int, total_bytes: int, shared_by: int) -> int:
    """Returns the bytes of memory that each of `shared_by` nodes of a machine may plan with."""
    spare = available_bytes - max(RESERVE_BYTES, RESERVE_SHARE * total_bytes)
    return max(1, round(spare / shared_by))


def measured_fleet(nodes: Sequence[NodeMeasured], rates: Rates, flops_per_byte: float = 0.0) -> MeasuredFleet:
    """Returns the fleet of the measured nodes and links; `flops_per_byte` is what their speeds were told with.

    Nodes of unknown speed are left out, and so are links that were tried and carried nothing.
    """
    kept = [node for node in nodes if node.flops_per_s is not None]
    notes = [_uncertain(f"the speed of {node.name}", node.flops_per_s) for node in kept]
    up: dict[str, float | None] = {}
    down: dict[str, float | None] = {}
    for machine in dict.fromkeys(node.machine for node in kept):
        out = [rate for pair, rate in rates.pairs.items() if pair[0] == machine]
        into = [rate for pair, rate in rates.pairs.items() if pair[1] == machine]
        up[machine], said = node_rate(f"the uplink of {machine}", out, rates.sent.get(machine))
        down[machine], more = node_rate(f"the downlink of {machine}", into, rates.received.get(machine))
        notes += [*said, *more]
    links, assumed, more = _links(kept, rates, _filled(up), _filled(down))
    return MeasuredFleet(
        Fleet(tuple(_nodes(kept, _filled(up), _filled(down))), tuple(links), flops_per_byte=flops_per_byte),
        [note for note in [*notes, *more] if note],
        up_assumed=frozenset(node.name for node in kept if up[node.machine] is None),
        down_assumed=frozenset(node.name for node in kept if down[node.machine] is None),
        links_assumed=assumed,
    )


def _nodes(kept: Sequence[NodeMeasured], up: Mapping[str, float], down: Mapping[str, float]) -> list[Node]:
    nodes = []
    for node in kept:
        assert node.flops_per_s is not None
        several = sum(each.machine == node.machine for each in kept) > 1
        nodes.append(
            Node(
                name=node.name,
                flops_per_s=flops_per_s_of_gflops(_short(node.flops_per_s.value / 1e9)),
                memory_bytes=bytes_of_gb(_short(node.memory_bytes / 1e9)),
                process_bytes=_in_gb(node.process_bytes),
                host_memory_bytes=_in_gb(node.host_memory_bytes),
                up_bytes_per_s=bytes_per_s_of_mbps(_short(up[node.machine] / MBPS)),
                down_bytes_per_s=bytes_per_s_of_mbps(_short(down[node.machine] / MBPS)),
                host=node.machine if several else None,
                device=node.device,
                address=node.address,
            )
        )
    return nodes


def _links(
    kept: Sequence[NodeMeasured], rates: Rates, up: Mapping[str, float], down: Mapping[str, float]
) -> tuple[list[Link], frozenset[frozenset[str]], list[str]]:
    """Returns the links, the pairs of those for which only the latency was measured, and notes."""
    links: list[Link] = []
    assumed: set[frozenset[str]] = set()
    notes: list[str] = []
    untried = 0
    for (a, b), latency in sorted(rates.latencies.items()):
        if not (a in up and b in up):
            continue
        there, back = rates.pairs.get((a, b)), rates.pairs.get((b, a))
        if there is None and back is None and {(a, b), (b, a)} & set(rates.failed):
            notes.append(f"{a} and {b} are left without a link: nothing that they sent each other arrived in time")
            continue
        rate, said = link_rate(f"{a} and {b}", there, back, min(up[a], down[b]), min(up[b], down[a]))
        notes += said
        delays = (seconds_of_ms(_short(each * 1e3)) for each in (latency.seconds, latency.jitter_s))
        latency_s, jitter_s = delays
        figures = latency_s, bytes_per_s_of_mbps(_short(rate / MBPS)), jitter_s
        ends = [(one.name, other.name) for one in kept for other in kept if (one.machine, other.machine) == (a, b)]
        links += [Link(*pair, *figures) for pair in ends]
        if there is None and back is None:
            untried += 1
            assumed |= {frozenset(pair) for pair in ends}
    if untried:
        known = "1 pair has a latency" if untried == 1 else f"{untried} pairs have a latency"
        notes.append(f"{known} and no rate that was measured: what their nodes allow is put down")
    return links, frozenset(assumed), notes


def _filled(measured: Mapping[str, float | None]) -> dict[str, float]:
    return {name: UNMEASURED_BYTES_PER_S if rate is None else rate for name, rate in measured.items()}


def node_rate(
    what: str, single: Sequence[MeasuredFigure], several: MeasuredFigure | None
) -> tuple[float | None, list[str]]:
    """Returns the highest rate at which a node's uplink (or downlink) was seen to carry data, and notes about it.

    `what` names it; `single` are its rates with single peers, `several` with several at once. The rate is None if there
    was no measurement.
    """
    if not single and several is None:
        return None, [
            f"{what} was not measured: {UNMEASURED_BYTES_PER_S / MBPS:g} Mbit/s are put down where none is known"
        ]
    best = _largest([*single, *([several] if several is not None else [])])
    notes = [_uncertain(what, best)]
    singles = sorted((each.value for each in single), reverse=True)
    if several is not None and several.value >= SATURATED * sum(singles[:4]):
        notes.append(f"{what} may carry more than {best.value / MBPS:.0f} Mbit/s: its peers together do not fill it")
    return best.value, [note for note in notes if note]


def _largest(estimates: Sequence[MeasuredFigure]) -> MeasuredFigure:
    """Returns the largest of several noisy estimates.

    The maximum itself would be too large, so a steadier estimate that is within the variation of it replaces it.
    """
    best = max(estimates, key=lambda each: each.value)
    while steadier := [
        each for each in estimates if each.spread < best.spread and each.value >= best.value * (1 - best.spread / 2)
    ]:
        best = max(steadier, key=lambda each: each.value)
    return best


def link_rate(
    pair: str, there: MeasuredFigure | None, back: MeasuredFigure | None, most_there: float, most_back: float
) -> tuple[float, list[str]]:
    """Returns the rate of a pair, which has no direction, and notes about it.

    It is the rate of the faster direction. If the nodes' own rates then promise more than the slower direction carried,
    it is the rate of the slower one. `most_there` and `most_back` are the rates that the two nodes allow.
    """
    known = [each for each in (there, back) if each is not None]
    if not known:
        return max(most_there, most_back), []
    notes = [note for each in known if (note := _uncertain(f"the rate between {pair}", each))][:1]
    fastest = max(each.value for each in known)
    promises = [(each.value, min(fastest, most)) for each, most in ((there, most_there), (back, most_back)) if each]
    if all(promised <= ASYMMETRIC * carried for carried, promised in promises):
        return fastest, notes
    slowest = min(each.value for each in known)
    notes.append(
        f"{pair} carry {slowest / MBPS:.0f} Mbit/s one way and {fastest / MBPS:.0f} the other, beyond what"
        " their uplinks and downlinks explain: the slower is put down"
    )
    return slowest, notes


def _in_gb(amount: int | None) -> int | None:
    return None if amount is None else bytes_of_gb(_short(amount / 1e9))


def _short(value: float) -> float:
    """Returns a figure rounded to four digits, since none is known better; given in the unit of the file."""
    return float(f"{value:.4g}")


def _uncertain(what: str, estimate: MeasuredFigure | None) -> str:
    if estimate is None or not estimate.is_uncertain:
        return ""
    return f"{what} is uncertain: it varied by {estimate.spread:.0%} while it was measured"


def merged(measured: MeasuredFleet, known: Fleet) -> Fleet:
    """Returns the user's fleet `known` with measured speeds, memory, rates and links in place of its own.

    Names, regions, hosts, data and everything that was not measured stay as they are; new nodes come last. A measured
    node replaces the known node of the same address and device, whatever its name is. Assumed rates do not replace
    the user's. All nodes of one host have the same rates.
    """
    measured = _named_as(known, measured)
    new = {node.name: node for node in measured.fleet.nodes}
    nodes = [_over(node, new.pop(node.name, None), measured) for node in known.nodes]
    nodes = _of_hosts([*nodes, *new.values()], measured)
    before = {_pair(link): link for link in known.links}
    links = [_link_over(before.pop(_pair(link), None), link, measured) for link in measured.fleet.links]
    traffic = measured.fleet.flops_per_byte
    return Fleet(tuple(nodes), (*before.values(), *links), known.regions, known.constraints, traffic)


def _named_as(known: Fleet, measured: MeasuredFleet) -> MeasuredFleet:
    """`measured` with the names that `known` uses for the same devices at the same addresses."""
    fleet = measured.fleet
    there = Counter((node.address, node.device) for node in fleet.nodes)
    of_known = {(node.address, node.device): node.name for node in known.nodes}
    places = {place: name for place, name in of_known.items() if place[0] is not None and there[place] == 1}
    names = {node.name: places.get((node.address, node.device), node.name) for node in fleet.nodes}
    nodes = [replace(node, name=names[node.name]) for node in fleet.nodes]
    links = [replace(link, a=names[link.a], b=names[link.b]) for link in fleet.links]
    return MeasuredFleet(
        replace(fleet, nodes=tuple(nodes), links=tuple(links)),
        measured.notes,
        up_assumed=frozenset(names[name] for name in measured.up_assumed),
        down_assumed=frozenset(names[name] for name in measured.down_assumed),
        links_assumed=frozenset(frozenset(names[name] for name in pair) for pair in measured.links_assumed),
    )


def _over(known: Node, node: Node | None, measured: MeasuredFleet) -> Node:
    if node is None:
        return known
    return replace(
        known,
        flops_per_s=node.flops_per_s,
        memory_bytes=node.memory_bytes,
        process_bytes=node.process_bytes,
        host_memory_bytes=node.host_memory_bytes,
        up_bytes_per_s=known.up_bytes_per_s if node.name in measured.up_assumed else node.up_bytes_per_s,
        down_bytes_per_s=known.down_bytes_per_s if node.name in measured.down_assumed else node.down_bytes_per_s,
        device=node.device,
        address=node.address or known.address,
        host=known.host or node.host,
    )


def _of_hosts(nodes: list[Node], measured: MeasuredFleet) -> list[Node]:
    """Returns the nodes with one rate for all nodes of a host: the measured rate if there is one, else the user's."""
    up: dict[str | None, float] = {}
    down: dict[str | None, float] = {}
    names = set(measured.fleet.names)
    for node in sorted(nodes, key=lambda each: each.name in names):
        if node.name not in measured.up_assumed or node.host not in up:
            up[node.host] = node.up_bytes_per_s
        if node.name not in measured.down_assumed or node.host not in down:
            down[node.host] = node.down_bytes_per_s
    return [
        node if node.host is None else replace(node, up_bytes_per_s=up[node.host], down_bytes_per_s=down[node.host])
        for node in nodes
    ]


def _link_over(known: Link | None, link: Link, measured: MeasuredFleet) -> Link:
    if known is None or _pair(link) not in measured.links_assumed:
        return link
    return replace(link, bytes_per_s=known.bytes_per_s)


def _pair(link: Link) -> frozenset[str]:
    return frozenset((link.a, link.b))
