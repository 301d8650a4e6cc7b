"""From what was measured to a fleet that `ravnest plan` takes, and what there is to say of the figures.

Pure. Decides what a node's uplink and downlink are taken to be, what the link of a pair is, and what is uncertain.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cluster_planner.fleet import Fleet, Link, Node
from cluster_planner.plan_format import bytes_of_gb, bytes_per_s, flops_per_s, seconds
from ravnest.machines.estimates import Estimate, Latency
from ravnest.machines.pairing import Pair

MBPS = 125_000.0
UNMEASURED_BYTES_PER_S = 100 * MBPS
"""Put down for a machine that had nobody to exchange with."""

SATURATED = 0.9
"""Several peers at once that come to less than this share of their single rates' sum have met the node's own limit."""

ASYMMETRIC = 1.25
"""A direction that carried less than the nodes' rates promise by more than this, and by more than chance, is told."""
RESERVE_SHARE, RESERVE_BYTES = 0.05, 512 * 10**6
"""Of a machine's memory, and at least, that is left to its owner beside what is in use already."""


@dataclass(frozen=True)
class NodeMeasured:
    """One node to be: a machine's processors, or one of its GPUs. `flops_per_s` None: it could not be measured."""

    name: str
    machine: str
    """The member of the crew that it belongs to."""
    address: str | None
    device: str
    flops_per_s: Estimate | None
    memory_bytes: int


@dataclass(frozen=True)
class Rates:
    """What is known of transfers, in bytes/s, between members of the crew."""

    pairs: Mapping[Pair, Estimate]
    sent: Mapping[str, Estimate]
    """To several peers at once."""
    received: Mapping[str, Estimate]
    latencies: Mapping[Pair, Latency]


def free_to_use(available_bytes: int, total_bytes: int, shared_by: int) -> int:
    """Memory that one of `shared_by` nodes of a machine may plan with."""
    spare = available_bytes - max(RESERVE_BYTES, RESERVE_SHARE * total_bytes)
    return max(1, round(spare / shared_by))


def measured_fleet(nodes: Sequence[NodeMeasured], rates: Rates) -> tuple[Fleet, list[str]]:
    """The fleet, without nodes of unknown speed; and notes, a sentence each."""
    kept = [node for node in nodes if node.flops_per_s is not None]
    machines = list(dict.fromkeys(node.machine for node in kept))
    notes = [_uncertain(f"the speed of {node.name}", node.flops_per_s) for node in kept]
    up: dict[str, float] = {}
    down: dict[str, float] = {}
    for machine in machines:
        out = {pair: rate for pair, rate in rates.pairs.items() if pair[0] == machine}
        into = {pair: rate for pair, rate in rates.pairs.items() if pair[1] == machine}
        up[machine], said = node_rate(f"the uplink of {machine}", list(out.values()), rates.sent.get(machine))
        down[machine], more = node_rate(f"the downlink of {machine}", list(into.values()), rates.received.get(machine))
        notes += [*said, *more]
    fleet_nodes = []
    first_of: dict[str, str] = {}
    for node in kept:
        assert node.flops_per_s is not None
        first_of.setdefault(node.machine, node.name)
        several = sum(each.machine == node.machine for each in kept) > 1
        fleet_nodes.append(
            Node(
                name=node.name,
                flops_per_s=flops_per_s(_short(node.flops_per_s.value / 1e9)),
                memory_bytes=bytes_of_gb(_short(node.memory_bytes / 1e9)),
                up_bytes_per_s=bytes_per_s(_short(up[node.machine] / MBPS)),
                down_bytes_per_s=bytes_per_s(_short(down[node.machine] / MBPS)),
                host=node.machine if several else None,
                device=node.device,
                address=node.address,
            )
        )
    links = []
    for (a, b), latency in sorted(rates.latencies.items()):
        if a in first_of and b in first_of:
            there, back = rates.pairs.get((a, b)), rates.pairs.get((b, a))
            rate, said = link_rate(f"{a} and {b}", there, back, min(up[a], down[b]), min(up[b], down[a]))
            notes += said
            delays = (seconds(_short(each * 1e3)) for each in (latency.seconds, latency.jitter_s))
            latency_s, jitter_s = delays
            figures = latency_s, bytes_per_s(_short(rate / MBPS)), jitter_s
            for one in (node.name for node in kept if node.machine == a):
                links += [Link(one, other.name, *figures) for other in kept if other.machine == b]
    return Fleet(tuple(fleet_nodes), tuple(links)), [note for note in notes if note]


def node_rate(what: str, single: Sequence[Estimate], several: Estimate | None) -> tuple[float, list[str]]:
    """A node's uplink (or downlink), and what to say of it: the most that it was seen to carry."""
    if not single and several is None:
        mbps = UNMEASURED_BYTES_PER_S / MBPS
        return UNMEASURED_BYTES_PER_S, [f"{what} was not measured, having no peer: {mbps:g} Mbit/s is put down"]
    best = max([*single, *([several] if several is not None else [])], key=lambda each: each.value)
    notes = [_uncertain(what, best)]
    singles = sorted((each.value for each in single), reverse=True)
    if several is not None and several.value >= SATURATED * sum(singles[:4]):
        notes.append(f"{what} may carry more than {best.value / MBPS:.0f} Mbit/s: its peers together do not fill it")
    return best.value, [note for note in notes if note]


def link_rate(
    pair: str, there: Estimate | None, back: Estimate | None, most_there: float, most_back: float
) -> tuple[float, list[str]]:
    """A pair's rate, which has no direction: the faster of its two, unless the nodes' own rates then promise more than
    the slower direction carried; then the slower. `most_…`: what the two nodes alone allow."""
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


def merged(measured: Fleet, known: Fleet) -> Fleet:
    """`known`, a user's, with what was measured in place of what it said: speeds, memory, rates, and measured links.

    Names, regions, hosts, data and all that was not measured stay; nodes that are new come last. Of a known address, a
    node is the one with the same device, whatever it is called.
    """
    measured = _named_as(known, measured)
    new = {node.name: node for node in measured.nodes}
    nodes = [_over(node, new.pop(node.name, None)) for node in known.nodes]
    pairs = {frozenset((link.a, link.b)) for link in measured.links}
    kept = [link for link in known.links if frozenset((link.a, link.b)) not in pairs]
    return Fleet((*nodes, *new.values()), (*kept, *measured.links), known.regions)


def _named_as(known: Fleet, measured: Fleet) -> Fleet:
    """`measured` with the names that `known` has for the same devices at the same addresses."""
    there = Counter((node.address, node.device) for node in measured.nodes)
    of_known = {(node.address, node.device): node.name for node in known.nodes}
    places = {place: name for place, name in of_known.items() if place[0] is not None and there[place] == 1}
    names = {node.name: places.get((node.address, node.device), node.name) for node in measured.nodes}
    nodes = [replace(node, name=names[node.name]) for node in measured.nodes]
    links = [replace(link, a=names[link.a], b=names[link.b]) for link in measured.links]
    return Fleet(tuple(nodes), tuple(links), measured.regions)


def _over(known: Node, measured: Node | None) -> Node:
    if measured is None:
        return known
    return replace(
        known,
        flops_per_s=measured.flops_per_s,
        memory_bytes=measured.memory_bytes,
        up_bytes_per_s=measured.up_bytes_per_s,
        down_bytes_per_s=measured.down_bytes_per_s,
        device=measured.device,
        address=measured.address or known.address,
        host=known.host or measured.host,
    )


def _short(value: float) -> float:
    """In the file's unit, to four digits: no figure is known better."""
    return float(f"{value:.4g}")


def _uncertain(what: str, estimate: Estimate | None) -> str:
    if estimate is None or not estimate.is_uncertain:
        return ""
    return f"{what} is uncertain: it varied by {estimate.spread:.0%} while it was measured"
