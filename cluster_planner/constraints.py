"""What a user demands of a plan, beside that it be good: who may share a cluster, and how many clusters there are.

Decides what each demand means, and what is wrong with one. Knows names of nodes, groups and regions only. How much of
the day a node is there, and what of it may be used, are properties of the node (fleet.py, plan_format.py).
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cluster_planner.errors import InvalidInput


@dataclass(frozen=True, kw_only=True)
class Constraints:
    """`forbid`: pairs of nodes that never share a cluster. `apart`: pairs of groups, or regions, of which no cluster
    has nodes of both. `groups`: name → nodes.
    """

    min_clusters: int = 1
    forbid: tuple[tuple[str, str], ...] = ()
    groups: tuple[tuple[str, tuple[str, ...]], ...] = ()
    apart: tuple[tuple[str, str], ...] = ()

    @property
    def divide(self) -> bool:
        """Whether any nodes may not share a cluster."""
        return bool(self.forbid or self.apart)

    def sides(self, region_of: Mapping[str, str | None]) -> tuple[tuple[frozenset[str], frozenset[str]], ...]:
        """Pairs of sets of nodes of which no cluster has nodes of both."""
        members = {name: frozenset(nodes) for name, nodes in self.groups}
        for region in region_of.values():
            if region is not None and region not in members:
                members[region] = frozenset(node for node, own in region_of.items() if own == region)
        pairs = [(frozenset((a,)), frozenset((b,))) for a, b in self.forbid]
        return (*pairs, *((members[a], members[b]) for a, b in self.apart))

    def check(self, region_of: Mapping[str, str | None]) -> None:
        """Raise `InvalidInput` for names nobody has, and demands that nothing can meet."""
        if not 1 <= self.min_clusters <= len(region_of):
            raise InvalidInput(
                f"must be from 1 to the number of nodes, {len(region_of)}, not {self.min_clusters}",
                key="constraints.min_clusters",
            )
        for i, pair in enumerate(self.forbid):
            _check_pair(pair, region_of, "node", f"constraints.forbid[{i}]")
        regions = {region for region in region_of.values() if region is not None}
        for name, nodes in self.groups:
            key = f"constraints.groups.{name}"
            if name in regions:
                raise InvalidInput("is the name of a region, too; give the group another", key=key)
            for node in nodes:
                if node not in region_of:
                    raise InvalidInput(f"no node is named {node!r}{did_you_mean(node, region_of)}", key=key)
        known = [*(name for name, _ in self.groups), *sorted(regions)]
        for i, pair in enumerate(self.apart):
            _check_pair(pair, known, "group or region", f"constraints.apart[{i}]")
        for i, (first, second) in enumerate(self.sides(region_of)[len(self.forbid) :]):
            if both := sorted(first & second):
                raise InvalidInput(f"{both[0]!r} is in both", key=f"constraints.apart[{i}]")


UNCONSTRAINED = Constraints()


def broken_by(sides: Sequence[tuple[frozenset[str], frozenset[str]]], nodes: Iterable[str]) -> tuple[str, str] | None:
    """Two of these nodes that may not share a cluster; None where all may."""
    cluster = frozenset(nodes)
    for first, second in sides:
        if (here := cluster & first) and (there := cluster & second):
            return min(here), min(there)
    return None


def _check_pair(pair: tuple[str, str], known: Iterable[str], kind: str, key: str) -> None:
    known = list(known)
    for name in pair:
        if name not in known:
            raise InvalidInput(f"no {kind} is named {name!r}{did_you_mean(name, known)}", key=key)
    if pair[0] == pair[1]:
        raise InvalidInput(f"names {pair[0]!r} twice", key=key)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The known name that this one resembles, as the end of a sentence."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
