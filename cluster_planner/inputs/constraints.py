"""What a user demands of a plan, beside that it be good: who shares a cluster, who runs which stage, how many clusters.

Decides how demands are stated, and which cannot be meant: names nobody has, and what contradicts itself whatever the
model. Knows names of nodes, groups and regions only. What they ask of one group of nodes is in grouping_rules.py; what
may be
used of a node, and when it is there, are properties of the node (fleet.py, conversion.py).
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from cluster_planner.errors import InvalidInput

LAST: Literal["last"] = "last"

FEW_NAMES = 8
"""So many names are listed in an error; of more, only one that is like the wrong one."""


@dataclass(frozen=True)
class Pin:
    """A node that has to run a stage: in the cluster of that name, or as that stage of its cluster, or both."""

    node: str
    cluster: str | None = None
    stage: int | Literal["last"] | None = None


@dataclass(frozen=True, kw_only=True)
class Constraints:
    """`forbid`: pairs of nodes that never share a cluster. `apart`: pairs of groups, or regions, of which no cluster
    has nodes of both. `groups`: name → nodes.
    """

    min_clusters: int = 1
    forbid: tuple[tuple[str, str], ...] = ()
    groups: tuple[tuple[str, tuple[str, ...]], ...] = ()
    apart: tuple[tuple[str, str], ...] = ()
    pins: tuple[Pin, ...] = ()

    def sides(self, region_of: Mapping[str, str | None]) -> tuple[tuple[frozenset[str], frozenset[str]], ...]:
        """Pairs of sets of nodes of which no cluster has nodes of both: of `forbid`, then of `apart`."""
        members = {name: frozenset(nodes) for name, nodes in self.groups}
        for region in {one for pair in self.apart for one in pair} - members.keys():
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
                _check_node(node, region_of, key)
        known = [*(name for name, _ in self.groups), *sorted(regions)]
        for i, pair in enumerate(self.apart):
            _check_pair(pair, known, "group or region", f"constraints.apart[{i}]")
        for i, (first, second) in enumerate(self.sides(region_of)[len(self.forbid) :]):
            if both := sorted(first & second):
                raise InvalidInput(f"{both[0]!r} is in both", key=f"constraints.apart[{i}]")
        self._check_pins(region_of)

    def _check_pins(self, region_of: Mapping[str, str | None]) -> None:
        of_node: dict[str, int] = {}
        of_stage: dict[tuple[str, object], int] = {}
        for i, pin in enumerate(self.pins):
            key = f"constraints.pin[{i}]"
            _check_node(pin.node, region_of, f"{key}.node")
            if pin.cluster is None and pin.stage is None:
                raise InvalidInput("needs a cluster, a stage, or both", key=key)
            if pin.node in of_node:
                raise InvalidInput(
                    f"{pin.node!r} is already pinned by constraints.pin[{of_node[pin.node]}]; a node has one pin, with "
                    "its cluster, its stage, or both",
                    key=f"{key}.node",
                )
            of_node[pin.node] = i
            if isinstance(pin.stage, int) and not 0 <= pin.stage < len(region_of):
                raise InvalidInput(
                    f"must be 'last', or from 0 to {len(region_of) - 1}: there are {len(region_of)} nodes, and each "
                    f"runs one stage; not {pin.stage}",
                    key=f"{key}.stage",
                )
            if pin.cluster is not None and pin.stage is not None:
                j = of_stage.setdefault((pin.cluster, pin.stage), i)
                if j != i:
                    raise InvalidInput(
                        f"{self.pins[j].node!r} is already pinned to stage {pin.stage} of {pin.cluster!r} by "
                        f"constraints.pin[{j}]; a stage has one node",
                        key=f"{key}.stage",
                    )
        sides, mates_of = self.sides(region_of), dict[str, list[str]]()
        for i, pin in enumerate(self.pins):
            if pin.cluster is None:
                continue
            mates = mates_of.setdefault(pin.cluster, [])
            mates.append(pin.node)
            for j, side in enumerate(sides):
                if both := broken_by([side], mates):
                    rule = f"forbid[{j}]" if j < len(self.forbid) else f"apart[{j - len(self.forbid)}]"
                    raise InvalidInput(
                        f"{both[0]!r} and {both[1]!r} are both pinned to {pin.cluster!r}, and constraints.{rule} "
                        "keeps them apart",
                        key=f"constraints.pin[{i}].cluster",
                    )


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


def _check_node(name: str, known: Mapping[str, object], key: str) -> None:
    if name not in known:
        raise InvalidInput(f"no node is named {name!r}{did_you_mean(name, known)}", key=key)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The known name that this one resembles, or all where they are few, as the end of a sentence."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1) or [one for one in known if name in one]
    if len(close) == 1:
        return f"; did you mean {close[0]!r}?"
    return f"; there are {', '.join(known)}" if 0 < len(known) <= FEW_NAMES else ""
