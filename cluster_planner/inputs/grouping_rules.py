"""What any one group of nodes must keep to so that it may be a cluster: constraints and hours, worked out for a fleet.

Decides what is allowed: nodes that are pinned to one cluster stay together, and apart from those of another; two nodes
pinned to one stage share no cluster; nodes that are never there together neither. Nodes are given by number, as in
`Fleet.nodes`. Knows no cost.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from cluster_planner.inputs.constraints import broken_by
from cluster_planner.inputs.hours import ALL_DAY, common, part_of_day

if TYPE_CHECKING:
    from cluster_planner.inputs.fleet import Fleet


class Rules:
    """The rules of one fleet."""

    def __init__(self, fleet: "Fleet") -> None:
        self._names = fleet.names
        self._number_of = {name: i for i, name in enumerate(fleet.names)}
        demanded = fleet.constraints
        self.min_clusters = demanded.min_clusters
        self._sides = demanded.sides({node.name: node.region for node in fleet.nodes})
        self._label = {pin.node: pin.cluster for pin in demanded.pins if pin.cluster is not None}
        self.stage_of: Mapping[str, int | Literal["last"]] = {
            pin.node: pin.stage for pin in demanded.pins if pin.stage is not None
        }
        """By name: the stage that a node has to run."""
        self._hours = [node.hours for node in fleet.nodes]
        self.pinned = frozenset(self._number_of[pin.node] for pin in demanded.pins)
        """Nodes that have to run a stage."""

    @cached_property
    def are_any(self) -> bool:
        """Whether there is any rule for groups."""
        return bool(self._sides or self.pinned or self.count_hours)

    @cached_property
    def count_hours(self) -> bool:
        """Whether any node is not there all day."""
        return any(hours != ALL_DAY for hours in self._hours)

    def atoms(self, nodes: Iterable[int]) -> list[tuple[int, ...]]:
        """These nodes, in parts that stay together: those pinned to one cluster, and everyone else alone."""
        together: dict[object, list[int]] = {}
        for i in nodes:
            together.setdefault(self._label.get(self._names[i], i), []).append(i)
        return [tuple(part) for part in together.values()]

    def broken(self, nodes: Sequence[int]) -> str | None:
        """Why these nodes may not be one cluster, after "the cluster"; None where they may."""
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
        if not common(self._hours[i] for i in nodes):
            return "has nodes that are never all there at the same time"
        return None

    def allows(self, nodes: Sequence[int]) -> bool:
        """Whether these nodes may be one cluster, if only some of them run stages too."""
        return self.broken(nodes) is None

    def label(self, names: Iterable[str]) -> str | None:
        """The cluster that these nodes are pinned to."""
        return next((self._label[name] for name in names if name in self._label), None)

    def required(self, names: Iterable[str]) -> frozenset[str]:
        """Those that have to run a stage."""
        return frozenset(name for name in names if self._number_of[name] in self.pinned) if self.pinned else frozenset()

    def presence(self, nodes: Iterable[int]) -> float:
        """The part of a day at which all these nodes are there."""
        return part_of_day(common(self._hours[i] for i in nodes)) if self.count_hours else 1.0

    def presence_of(self, names: Iterable[str]) -> float:
        """The same by name."""
        return self.presence(self._number_of[name] for name in names) if self.count_hours else 1.0

    def _labelled(self, label: str) -> set[str]:
        return {name for name, own in self._label.items() if own == label}
