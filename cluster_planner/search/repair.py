"""Groups that keep to the rules, made of groups that do not.

Decides how a grouping is mended: atoms (nodes that stay together) go where most of their nodes are; a group is divided
until each part is allowed; a part that does not hold the model is given up, unless it has nodes that must run: these
take the nearest nodes that may join them, first of those that nobody has, then of those that others can spare. What
is left over belongs to nobody. Knows points and answers only.
"""

from collections.abc import Callable, Sequence

import numpy as np

from cluster_planner.inputs.spans import Floats
from cluster_planner.search.estimates import Group, merged

Answer = Callable[[Group], bool]


def mended(
    points: Floats,
    groups: Sequence[Group],
    atoms: Sequence[Group],
    needed: frozenset[int],
    allows: Answer,
    holds: Answer,
) -> tuple[Group, ...] | None:
    """The groups after mending; None where some of the `needed` nodes find no group.

    `atoms`: of the nodes in `groups`.
    """
    parts: list[Group] = []
    for together in _gathered(groups, atoms):
        parts += _divided(points, together, needed, allows)
    for part in parts.copy():
        if not needed & set(part) and not holds(part):
            parts.remove(part)
    taken = {node for part in parts for node in part}
    loose = [atom for atom in atoms if taken.isdisjoint(atom)]
    atom_of = {node: atom for atom in atoms for node in atom}
    while short := [part for part in parts if not holds(part)]:
        part = short[0]
        nearer = _by_distance(points, part)
        joined = next((atom for atom in sorted(loose, key=nearer) if allows(merged(part, atom))), None)
        if joined is not None:
            loose.remove(joined)
        else:
            given = _spared(part, parts, atom_of, needed, allows, holds, nearer)
            if given is None:
                return None
            giver, joined = given
            parts.remove(giver)
            left = tuple(node for node in giver if node not in joined)
            if left and holds(left):
                parts.append(left)
            else:
                loose += list(dict.fromkeys(atom_of[node] for node in left))
        parts[parts.index(part)] = merged(part, joined)
    return tuple(sorted(parts)) or None


def _gathered(groups: Sequence[Group], atoms: Sequence[Group]) -> list[list[Group]]:
    """The atoms of each group: each atom is with most of its nodes."""
    group_of = {node: i for i, group in enumerate(groups) for node in group}
    gathered: list[list[Group]] = [[] for _ in groups]
    for atom in atoms:
        places = [group_of[node] for node in atom]
        gathered[max(places, key=lambda i: (places.count(i), -i))].append(atom)
    return gathered


def _divided(points: Floats, atoms: Sequence[Group], needed: frozenset[int], allows: Answer) -> list[Group]:
    """In as many parts as it takes until every part is allowed: needed nodes first, then those nearest to the centre,
    each to the first part that allows it.
    """
    if not atoms:
        return []
    nearer = _by_distance(points, merged(*atoms))
    parts: list[Group] = []
    for atom in sorted(atoms, key=lambda atom: (not needed & set(atom), nearer(atom))):
        at = next((i for i, part in enumerate(parts) if allows(merged(part, atom))), None)
        if at is None:
            parts.append(atom)
        else:
            parts[at] = merged(parts[at], atom)
    return parts


def _spared(
    part: Group,
    parts: Sequence[Group],
    atom_of: dict[int, Group],
    needed: frozenset[int],
    allows: Answer,
    holds: Answer,
    nearer: Callable[[Group], tuple[float, Group]],
) -> tuple[Group, Group] | None:
    """(who gives, the atom given): of a group that holds the model without it, else of one that need not be."""
    offers = [
        (giver, atom_of[node])
        for giver in parts
        if giver != part
        for node in giver
        if not needed & set(atom_of[node]) and allows(merged(part, atom_of[node]))
    ]
    able = [offer for offer in offers if holds(tuple(node for node in offer[0] if node not in offer[1]))]
    free = [offer for offer in offers if not needed & set(offer[0])]
    return min(able or free, key=lambda offer: nearer(offer[1]), default=None)


def _by_distance(points: Floats, part: Group) -> Callable[[Group], tuple[float, Group]]:
    centre = points[list(part)].mean(axis=0)
    return lambda atom: (float(np.linalg.norm(points[list(atom)].mean(axis=0) - centre)), atom)
