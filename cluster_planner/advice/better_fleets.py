"""A fleet with one thing better than it is: a machine, a link, a host's uplink. Decides nothing."""

from dataclasses import replace

from cluster_planner.inputs.fleet import Fleet, Link
from cluster_planner.predict.stage_times import host_key


def with_memory(fleet: Fleet, name: str, memory_bytes: int) -> Fleet:
    """That node with so much."""
    nodes = tuple(replace(n, memory_bytes=memory_bytes) if n.name == name else n for n in fleet.nodes)
    return replace(fleet, nodes=nodes)


def with_speed(fleet: Fleet, name: str, flops_per_s: float) -> Fleet:
    """That node with so much."""
    nodes = tuple(replace(n, flops_per_s=flops_per_s) if n.name == name else n for n in fleet.nodes)
    return replace(fleet, nodes=nodes)


def with_host(fleet: Fleet, name: str, *, up: float = 1.0, down: float = 1.0) -> Fleet:
    """Uplink and downlink of that node, and of all that share its host, so many times as fast."""
    key = host_key(fleet, name)
    nodes = tuple(
        replace(n, up_bytes_per_s=n.up_bytes_per_s * up, down_bytes_per_s=n.down_bytes_per_s * down)
        if host_key(fleet, n.name) == key
        else n
        for n in fleet.nodes
    )
    return replace(fleet, nodes=nodes)


def with_link(fleet: Fleet, a: str, b: str, *, latency: float = 1.0, rate: float = 1.0) -> Fleet:
    """What joins these two nodes so many times as long, and as fast."""
    old = fleet.link(a, b)
    new = Link(old.a, old.b, old.latency_s * latency, old.bytes_per_s * rate)
    others = tuple(link for link in fleet.links if {link.a, link.b} != {a, b})
    return replace(fleet, links=(*others, new))
