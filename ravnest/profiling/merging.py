"""What was measured, written into a fleet that the user has: `ravnest profile --merge`.

Pure. Decides which figures replace the user's: those that were measured, and no others.
"""

from collections import Counter
from dataclasses import replace

from cluster_planner import Fleet, Link, Node
from ravnest.profiling.measured_fleet import MeasuredFleet


def merged(measured: MeasuredFleet, known: Fleet) -> Fleet:
    """`known`, a user's, with what was measured in place of what it said: speeds, memory, rates, and measured links.

    Names, regions, hosts, data and all that was not measured stay; nodes that are new come last. Of a known address, a
    node is the one with the same device, whatever it is called. Rates that are only put down replace none of the
    user's; those of a host are the same for all its nodes.
    """
    measured = _named_as(known, measured)
    new = {node.name: node for node in measured.fleet.nodes}
    nodes = [_over(node, new.pop(node.name, None), measured) for node in known.nodes]
    nodes = _of_hosts([*nodes, *new.values()], measured)
    before = {_pair(link): link for link in known.links}
    links = [_link_over(before.pop(_pair(link), None), link, measured) for link in measured.fleet.links]
    return Fleet(tuple(nodes), (*before.values(), *links), known.regions)


def _named_as(known: Fleet, measured: MeasuredFleet) -> MeasuredFleet:
    """`measured` with the names that `known` has for the same devices at the same addresses."""
    fleet = measured.fleet
    there = Counter((node.address, node.device) for node in fleet.nodes)
    of_known = {(node.address, node.device): node.name for node in known.nodes}
    places = {place: name for place, name in of_known.items() if place[0] is not None and there[place] == 1}
    names = {node.name: places.get((node.address, node.device), node.name) for node in fleet.nodes}
    nodes = [replace(node, name=names[node.name]) for node in fleet.nodes]
    links = [replace(link, a=names[link.a], b=names[link.b]) for link in fleet.links]
    return MeasuredFleet(
        Fleet(tuple(nodes), tuple(links), fleet.regions),
        measured.notes,
        up_put_down=frozenset(names[name] for name in measured.up_put_down),
        down_put_down=frozenset(names[name] for name in measured.down_put_down),
        links_put_down=frozenset(frozenset(names[name] for name in pair) for pair in measured.links_put_down),
    )


def _over(known: Node, node: Node | None, measured: MeasuredFleet) -> Node:
    if node is None:
        return known
    return replace(
        known,
        flops_per_s=node.flops_per_s,
        memory_bytes=node.memory_bytes,
        up_bytes_per_s=known.up_bytes_per_s if node.name in measured.up_put_down else node.up_bytes_per_s,
        down_bytes_per_s=known.down_bytes_per_s if node.name in measured.down_put_down else node.down_bytes_per_s,
        device=node.device,
        address=node.address or known.address,
        host=known.host or node.host,
    )


def _of_hosts(nodes: list[Node], measured: MeasuredFleet) -> list[Node]:
    """Nodes of one host share its rates: those that were measured, else those that the user gave."""
    up: dict[str | None, float] = {}
    down: dict[str | None, float] = {}
    names = set(measured.fleet.names)
    for node in sorted(nodes, key=lambda each: each.name in names):
        if node.name not in measured.up_put_down or node.host not in up:
            up[node.host] = node.up_bytes_per_s
        if node.name not in measured.down_put_down or node.host not in down:
            down[node.host] = node.down_bytes_per_s
    return [
        node if node.host is None else replace(node, up_bytes_per_s=up[node.host], down_bytes_per_s=down[node.host])
        for node in nodes
    ]


def _link_over(known: Link | None, link: Link, measured: MeasuredFleet) -> Link:
    if known is None or _pair(link) not in measured.links_put_down:
        return link
    return replace(link, bytes_per_s=known.bytes_per_s)


def _pair(link: Link) -> frozenset[str]:
    return frozenset((link.a, link.b))
