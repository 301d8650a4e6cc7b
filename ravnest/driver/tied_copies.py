"""Tied parameters of which each stage that uses them has a copy of its own (`tied: averaged`), and their rings. Pure.

Decides who averages each: its owner and its borrowers in every cluster, in the clusters' order, so that all hold the
same anchor after each round.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from cluster_planner import RingMember
from ravnest.splitting import StageProgram


@dataclass(frozen=True)
class Copies:
    """Parameters that the same stages use."""

    members: tuple[RingMember, ...]
    names: tuple[str, ...]
    elements: int


def copies(clusters: Mapping[str, Sequence[StageProgram]]) -> list[Copies]:
    """`clusters`: the programs of each cluster's stages, in order. Frozen parameters need no averaging."""
    users: dict[str, list[RingMember]] = {}
    sizes: dict[str, int] = {}
    lent: set[str] = set()
    for cluster, programs in clusters.items():
        for index, program in enumerate(programs):  # a stage borrows only from those before it
            for spec in (*program.parameters, *program.borrowed):
                if spec.requires_grad:
                    users.setdefault(spec.name, []).append((cluster, index))
                    sizes[spec.name] = prod(spec.shape)
            lent |= {spec.name for spec in program.borrowed if spec.requires_grad}
    together: dict[tuple[RingMember, ...], list[str]] = {}
    for name, members in users.items():
        if name in lent:
            together.setdefault(tuple(members), []).append(name)
    return [Copies(who, tuple(names), sum(sizes[name] for name in names)) for who, names in together.items()]
