"""Which nodes are the same to every plan: two that could change places in any plan, and nothing would differ.

Fleets of rented machines have many: all of a region. A search that knows them looks at one of all plans that differ by
such nodes alone. In: a fleet. Out: of each node the number of its first twin.
"""

from dataclasses import replace

import numpy as np

from cluster_planner.inputs.fleet import Fleet, Floats

MOST_NODES = 300
"""In larger fleets each node is taken to be one of its kind, since all pairs of nodes are compared."""


def twins_of(fleet: Fleet) -> tuple[int, ...]:
    """Return, of each node, the number of the first node that it could change places with in any plan.

    Nodes of one host, or under constraints, are taken to have none.
    """
    count = len(fleet.nodes)
    if count > MOST_NODES or fleet.rules.are_any:
        return tuple(range(count))
    everyone = np.arange(count)
    latency_s, bytes_per_s = fleet.arrays.between(everyone, everyone)
    firsts: dict[object, list[int]] = {}
    found = []
    for i, node in enumerate(fleet.nodes):
        alike = firsts.setdefault(replace(node, name="n", region=None, address=None), [])
        same = (first for first in alike if _reach_alike((latency_s, bytes_per_s), i, first))
        first = i if node.host is not None else next(same, i)
        if first == i:
            alike.append(i)
        found.append(first)
    return tuple(found)


def _reach_alike(links: tuple[Floats, Floats], a: int, b: int) -> bool:
    """Say whether all others, and the other one of the two, are linked to `a` as to `b`."""
    swapped = np.arange(len(links[0]))
    swapped[[a, b]] = b, a
    return all(
        np.array_equal(table[a], table[b, swapped]) and np.array_equal(table[:, a], table[swapped, b])
        for table in links
    )
