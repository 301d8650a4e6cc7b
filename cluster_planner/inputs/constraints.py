"""What a user demands of a plan: hours of nodes, constraints on clusters, and what both mean for a group of nodes.

Hours are whole hours of the day in UTC, written `18-24` or `22-6, 12-13` (over midnight where the first number is the
larger). Inside, a set of hours is an integer: bit h is set if the node is there from h to h + 1. There are no days of
the week.

`Constraints` holds what the file states: who shares a cluster, who runs which stage, how many clusters there are. It is
checked for names that nobody has and for demands that contradict each other, whatever the model. `GroupingRules` works
the constraints and hours out for one fleet and says whether a group of nodes, given by number, may be a cluster: nodes
pinned to one cluster stay together and apart from those of another; two nodes pinned to one stage share no cluster;
nodes that are never there at the same time share none either. What may be used of a node (caps) is applied where the
file is converted (files/conversion.py).
"""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import and_
from typing import Literal

from cluster_planner.errors import InvalidInput

DAY = 24
ALL_DAY = (1 << DAY) - 1

_RANGE = re.compile(r"(\d{1,2})-(\d{1,2})")


LAST: Literal["last"] = "last"

AWAY_S = 60.0
"""For so long a cluster that loses a node does not train, in seconds of its work: until it is noticed, has started anew
and holds the anchor, and what it had made and not averaged. An assumption; experiments/churn measures it in places."""

FEW_NAMES = 8
"""An error lists at most so many names; where there are more, it names only one that resembles the wrong one."""


def hours_from(text: str) -> int:
    """Return the hours that a text names. Raises `ValueError` with what was expected."""
    hours = 0
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        first, last = (int(end) for end in match.groups()) if match else (0, 0)
        if match is None or first == last or first >= DAY or last > DAY:
            raise ValueError(f"must be whole hours of the day in UTC, such as 18-24 or 22-6, not {text!r}")
        hours |= sum(1 << hour % DAY for hour in range(first, last if first < last else last + DAY))
    return hours


def hours_to(hours: int) -> str:
    """Return the text that `hours_from` reads as these hours, as short as can be."""
    if hours == ALL_DAY:
        return "0-24"
    starts = [hour for hour in range(DAY) if hours >> hour & 1 and not hours >> (hour - 1) % DAY & 1]
    parts = []
    for start in starts:
        end = start
        while hours >> end % DAY & 1:
            end += 1
        parts.append(f"{start}-{end if end <= DAY else end - DAY}")
    return ", ".join(parts)


def common_hours(several: Iterable[int]) -> int:
    """Return the hours that all of them have."""
    return reduce(and_, several, ALL_DAY)


def part_of_day(hours: int) -> float:
    """Return how much of a day they are: from 0 to 1."""
    return hours.bit_count() / DAY


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
    """Return two of these nodes that may not share a cluster; None where all may."""
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
    """Return the known name that this one resembles, or all where they are few, as the end of a sentence."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1) or [one for one in known if name in one]
    if len(close) == 1:
        return f"; did you mean {close[0]!r}?"
    return f"; there are {', '.join(known)}" if 0 < len(known) <= FEW_NAMES else ""


class GroupingRules:
    """The rules of one fleet for groups of its nodes. `regions`, `hours` and `mtbf_s` are in the order of `names`."""

    def __init__(
        self,
        names: Sequence[str],
        regions: Sequence[str | None],
        hours: Sequence[int],
        demanded: Constraints,
        mtbf_s: Sequence[float | None],
    ) -> None:
        self._names = names
        self._number_of = {name: i for i, name in enumerate(names)}
        self.min_clusters = demanded.min_clusters
        self._sides = demanded.sides(dict(zip(names, regions, strict=True)))
        self._label = {pin.node: pin.cluster for pin in demanded.pins if pin.cluster is not None}
        self.stage_of: Mapping[str, int | Literal["last"]] = {
            pin.node: pin.stage for pin in demanded.pins if pin.stage is not None
        }
        """Node name → the stage that it has to run."""
        self._hours = hours
        self._away = [0.0 if each is None else AWAY_S / each for each in mtbf_s]
        """By node: how long a cluster of it is away because of it, for each second that it trains."""
        self.pinned = frozenset(self._number_of[pin.node] for pin in demanded.pins)
        """Numbers of the nodes that have to run a stage."""

    @cached_property
    def are_any(self) -> bool:
        """Say whether there is any rule for groups."""
        return bool(self._sides or self.pinned or self.count_hours)

    @cached_property
    def count_hours(self) -> bool:
        """Say whether any node is not there all day."""
        return any(hours != ALL_DAY for hours in self._hours)

    @cached_property
    def _count_presence(self) -> bool:
        return self.count_hours or any(self._away)

    def atoms(self, nodes: Iterable[int]) -> list[tuple[int, ...]]:
        """Return these nodes, in parts that stay together: those pinned to one cluster, and everyone else alone."""
        together: dict[object, list[int]] = {}
        for i in nodes:
            together.setdefault(self._label.get(self._names[i], i), []).append(i)
        return [tuple(part) for part in together.values()]

    def broken(self, nodes: Sequence[int]) -> str | None:
        """Return why these nodes may not be one cluster, after "the cluster", or None where they may."""
        if not self.are_any:
            return None
        names = [self._names[i] for i in nodes]
        if both := broken_by(self._sides, names):
            return f"has {both[0]!r} and {both[1]!r}, which constraints keep apart"
        labels = sorted({label for name in names if (label := self._label.get(name)) is not None})
        if len(labels) > 1:
            return f"has nodes that are pinned to {labels[0]!r} and nodes that are pinned to {labels[1]!r}"
        if labels and (away := self._labelled(labels[0]) - set(names)):
            return f"has nodes that are pinned to {labels[0]!r}, and {min(away)!r}, pinned to it too, is not among them"
        stages = [stage for name in names if (stage := self.stage_of.get(name)) is not None]
        if len(set(stages)) < len(stages):
            return f"has two nodes that are pinned to stage {max(stages, key=stages.count)}"
        if not common_hours(self._hours[i] for i in nodes):
            return "has nodes that are never all there at the same time"
        return None

    def allows(self, nodes: Sequence[int]) -> bool:
        """Say whether these nodes may be one cluster, if only some of them run stages too."""
        return self.broken(nodes) is None

    def label(self, names: Iterable[str]) -> str | None:
        """Return the cluster that these nodes are pinned to."""
        return next((self._label[name] for name in names if name in self._label), None)

    def required(self, names: Iterable[str]) -> frozenset[str]:
        """Return those of the named nodes that have to run a stage."""
        return frozenset(name for name in names if self._number_of[name] in self.pinned) if self.pinned else frozenset()

    def presence(self, nodes: Iterable[int]) -> float:
        """Return the part of the time in which a cluster of these nodes trains, by their hours and failures."""
        if not self._count_presence:
            return 1.0
        members = tuple(nodes)
        there = part_of_day(common_hours(self._hours[i] for i in members)) if self.count_hours else 1.0
        return there / (1.0 + sum(self._away[i] for i in members))

    def presence_of(self, names: Iterable[str]) -> float:
        """Return the same of nodes by name."""
        return self.presence(self._number_of[name] for name in names) if self._count_presence else 1.0

    def _labelled(self, label: str) -> set[str]:
        return {name for name, own in self._label.items() if own == label}
