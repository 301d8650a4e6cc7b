"""What a reader of a plan should know of its links: those that nothing tells of, and rates that cannot be reached.

Decides the words. What a link is taken to be, and what a flow over it can carry, is cluster_planner's.
"""

from __future__ import annotations

import itertools

from cluster_planner import DEFAULT_LATENCY_S, DEFAULT_REGION_LATENCY_S, Plan, counted

ABOUT = 1.05
"""Two measurements of one line differ by as much."""
_MBPS = 125_000.0


def link_notes(plan: Plan) -> list[str]:
    """A line for each thing."""
    return [line for line in (assumption(plan), beyond_nodes(plan)) if line is not None]


def assumed_links(plan: Plan) -> list[tuple[str, str]]:
    """The pairs of nodes that exchange messages in this plan, and of whose link nothing is known."""
    pairs = [pair for c in plan.clusters for pair in itertools.pairwise(stage.node for stage in c.stages)]
    for ring in plan.rings if len(plan.clusters) > 1 else ():
        nodes = [plan.cluster(name).stages[index].node for name, index in ring.members]
        pairs += zip(nodes, (*nodes[1:], nodes[0]), strict=True)
    used = dict.fromkeys((min(pair), max(pair)) for pair in pairs if pair[0] != pair[1])
    return [pair for pair in used if not plan.fleet.knows(*pair)]


def assumption(plan: Plan) -> str | None:
    """What is assumed of these links."""
    if not (pairs := assumed_links(plan)):
        return None
    if plan.fleet.links or plan.fleet.regions:
        of = f"the link between {_and_more(pairs)}"
    else:
        of = f"any link, for neither links nor regions are given: {_and_more(pairs)}"
    return (
        f"assumed: nothing is known of {of}: "
        f"{DEFAULT_LATENCY_S * 1e3:g} ms one way ({DEFAULT_REGION_LATENCY_S * 1e3:g} ms within a region), and no limit "
        "but that of the nodes; state it under links or regions"
    )


def capped_links(plan: Plan) -> list[tuple[str, str]]:
    """The pairs whose stated rate no flow between them can have, in neither direction, for what the nodes carry."""
    fleet = plan.fleet
    return [
        (link.a, link.b)
        for link in fleet.links
        if link.bytes_per_s
        > ABOUT * max(fleet.flow_bytes_per_s(link.a, link.b), fleet.flow_bytes_per_s(link.b, link.a))
    ]


def beyond_nodes(plan: Plan) -> str | None:
    """What becomes of such rates."""
    if not (pairs := capped_links(plan)):
        return None
    a, b = pairs[0]
    stated = plan.fleet.link(a, b).bytes_per_s
    counts = max(plan.fleet.flow_bytes_per_s(a, b), plan.fleet.flow_bytes_per_s(b, a))
    return (
        f"note: mbps is above what the nodes' up_mbps and down_mbps carry for {_and_more(pairs)}: of {a} – {b}, "
        f"{counts / _MBPS:.4g} of {stated / _MBPS:.4g} count. up_mbps and down_mbps are of all of a machine's links "
        "together, those of its LAN included"
    )


def _and_more(pairs: list[tuple[str, str]]) -> str:
    more = len(pairs) - 1
    return f"{pairs[0][0]} and {pairs[0][1]}" + (f" (and {counted(more, 'more pair')})" if more else "")
