"""Parts of a fleet that may be worth more by themselves than with all of it: what a search should not do worse than.

More machines can make a plan worse: a slow uplink holds every round up, and a search over many nodes sees each of them
less often. So the parts are searched too, as far as they are named here: each region alone, the fleet without one
region, and without its slowest nodes, by speed and by links. In: a fleet. Out: nodes.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from cluster_planner.inputs.fleet import Fleet
from cluster_planner.search.estimates import Group

MOST_IN_PARTS = 40
"""In fleets of up to so many nodes parts are also named by several limits together, and searched."""

MOST_REGIONS = 16
"""In fleets of more regions, no part is named for each."""

BY_REGION = 2
"""So many of the best parts are looked at region by region."""

FASTEST = (0.75, 0.5, 0.25)
"""These fractions of the nodes are looked at, the fastest by speed and by links, and all but the slowest one."""


def parts_of(fleet: Fleet, nodes: Group) -> Iterator[tuple[str, Group]]:
    """Yield each part of `nodes` in words, and its nodes; no part twice, and not all nodes."""
    seen = {nodes, ()}
    for words, part in (*_by_region(fleet, nodes), *_fastest(fleet, nodes)):
        if part not in seen:
            seen.add(part)
            yield words, part


def likely_parts(
    fleet: Fleet, nodes: Group, worth: Callable[[Group], float], *, combined: bool
) -> list[tuple[float, str, Group]]:
    """Return (worth, words, nodes) of parts of `nodes`, those first that are worth most.

    `combined`: beside those of `parts_of` also nodes above a speed and above a rate of links, and the best of these
    parts region by region. The limits are powers of two, and so the same for a fleet and for a part of it.
    """
    found: dict[Group, tuple[float, str]] = {}

    def look(parts: Iterable[tuple[str, Group]]) -> None:
        for words, part in parts:
            if part not in found and 0 < len(part) < len(nodes):
                found[part] = worth(part), words

    def ranked() -> list[tuple[float, str, Group]]:
        return sorted(
            ((value, words, part) for part, (value, words) in found.items()), key=lambda one: (-one[0], len(one[2]))
        )

    look(parts_of(fleet, nodes))
    if combined:
        look(_above(fleet, nodes))
        for _, words, part in ranked()[:BY_REGION]:
            look((f"{where} of {words}", these) for where, these in _by_region(fleet, part))
    return ranked()


def above_rates(fleet: Fleet, nodes: Group) -> Iterator[Group]:
    """Yield the nodes with links above each rate that is a power of two, but for all nodes."""
    _, links = _speeds_and_links(fleet, nodes)
    for rate in _limits(links)[1:]:
        yield tuple(i for i, link in zip(nodes, links, strict=True) if link >= rate)


def core_of(fleet: Fleet, nodes: Group, run: Collection[int], most: int = MOST_IN_PARTS) -> Group:
    """Return so many of these nodes at most: those that run, and the fastest others by speed and by links in turn,
    first of the regions of those that run.
    """
    regions = {fleet.nodes[i].region for i in run}
    ranked = [
        [node for _, _, node in sorted((fleet.nodes[i].region not in regions, -value, i) for i, value in of_each)]
        for of_each in (zip(nodes, values, strict=True) for values in _speeds_and_links(fleet, nodes))
    ]
    core = dict.fromkeys([*run, *(node for both in zip(*ranked, strict=True) for node in both)])
    return tuple(sorted(list(core)[:most]))


def as_fleet(fleet: Fleet, nodes: Group) -> Fleet:
    """Return these nodes as a fleet that has no others."""
    own = tuple(fleet.nodes[i] for i in nodes)
    names, regions = {node.name for node in own}, {node.region for node in own}
    return replace(
        fleet,
        nodes=own,
        links=tuple(link for link in fleet.links if {link.a, link.b} <= names),
        regions=tuple(link for link in fleet.regions if {link.a, link.b} <= regions),
    )


def _by_region(fleet: Fleet, nodes: Group) -> list[tuple[str, Group]]:
    regions = {region: None for i in nodes if (region := fleet.nodes[i].region) is not None}
    if len(regions) > MOST_REGIONS:
        return []
    own = {region: tuple(i for i in nodes if fleet.nodes[i].region == region) for region in regions}
    alone = [(f"{region} alone", part) for region, part in own.items()]
    without = [(f"without {region}", tuple(i for i in nodes if i not in part)) for region, part in own.items()]
    return alone + without


def _above(fleet: Fleet, nodes: Group) -> Iterator[tuple[str, Group]]:
    """Yield the nodes above each speed and rate of links that are powers of two."""
    speeds, links = _speeds_and_links(fleet, nodes)
    for rate in _limits(links):
        for speed in _limits(speeds):
            part = tuple(i for i, a, b in zip(nodes, speeds, links, strict=True) if a >= speed and b >= rate)
            yield f"nodes of {speed / 1e9:.2g} GFLOP/s and {rate / 1e6:.2g} MB/s or more", part


def _limits(values: Sequence[float]) -> list[float]:
    """Return the powers of two that leave different values above them, the lowest first."""
    powers = sorted({math.floor(math.log2(value)) for value in values if value > 0})
    return [2.0**power for power in powers]


def _speeds_and_links(fleet: Fleet, nodes: Group) -> tuple[Sequence[float], Sequence[float]]:
    arrays = fleet.arrays
    links = [float(min(arrays.up_bytes_per_s[i], arrays.down_bytes_per_s[i])) for i in nodes]
    return [float(arrays.flops_per_s[i]) for i in nodes], links


def _fastest(fleet: Fleet, nodes: Group) -> Iterator[tuple[str, Group]]:
    speeds, links = _speeds_and_links(fleet, nodes)
    for what, values in (("speed", speeds), ("links", links)):
        ranked = [node for _, node in sorted((-value, node) for value, node in zip(values, nodes, strict=True))]
        yield f"without {fleet.nodes[ranked[-1]].name}, the slowest by {what}", tuple(sorted(ranked[:-1]))
        for part in FASTEST:
            yield f"the fastest {part:.0%} by {what}", tuple(sorted(ranked[: max(1, round(part * len(ranked)))]))
