"""Chooses the cuts: of all positions where both modes of a model can be cut, those that are offered to the planner.

In: the graphs of training and of evaluation; positions with the bytes that a cut there sends, and running totals of
work. Out: how the two graphs correspond, and the boundaries of the units.

**Choice.**
1. Between two operations that use parameters, only the position that sends the fewest bytes is kept. So every unit
   holds a parameter, and none is without work.
2. A cut is dropped when another, less than 2 % of the model's work and parameters away, sends at most two thirds of
   its bytes. In a transformer this leaves the two residual joints of a block, and more the fewer blocks there are.
3. Of cuts with less than 0.2 % of the model's work and parameters between them, the one that sends less is kept.
4. While there are too many units, the cheapest neighbours are merged.

**Both modes are cut at the same places.** Both are exported, instead of one graph being rewritten into the other. So
every operator with a mode (dropout, batch-norm, instance-norm, attention's dropout, LSTM, rrelu) and every branch on
`self.training` in the user's own code is right without a list of operators. It remains to find the position of the
evaluation graph that corresponds to a cut of the training graph. Operations are paired in order, by the module that
called them and by operator, ignoring arguments. A cut is kept only where everything that evaluation needs behind it is
paired with something that training sends there. A wrong pairing can therefore only lose a cut, and never give a wrong
result.
"""

from bisect import bisect_left
from collections.abc import Collection
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import pairwise

from ravnest.splitting.liveness import GraphLayout
from ravnest.splitting.program import Operation, Reference, Value

MOST_UNITS = 200
_NEAR = 0.02
_MUCH_LESS = 2 / 3
_SAME = 0.002


@dataclass(frozen=True)
class Cut:
    """A position where the model may be cut."""

    position: int
    sent_bytes: int
    """Bytes sent forward and back, for the whole sample."""


@dataclass(frozen=True)
class RunningTotals:
    """Running totals over the positions of a graph: entry p is the total before position p."""

    flops: tuple[int, ...]
    parameter_bytes: tuple[int, ...]
    parameter_uses: tuple[int, ...]

    def share(self, start: int, end: int) -> float:
        """The fraction of the model's work, or of its parameter bytes if that is more, that lies in [start, end)."""
        shares = [
            (totals[end] - totals[start]) / totals[-1] if totals[-1] else 0.0
            for totals in (self.flops, self.parameter_bytes)
        ]
        return max(shares)


def choose(cuts: list[Cut], work: RunningTotals, most_units: int = MOST_UNITS) -> tuple[int, ...]:
    """The positions of the units' boundaries, both ends of the model included; at most `most_units` units."""
    kept = _without_dominated(_cheapest_between_parameters(cuts, work), work)
    kept = _without_twins(kept, work)
    positions = [0, *(cut.position for cut in kept), len(work.flops) - 1]
    return _merged(positions, work, most_units)


def _cheapest_between_parameters(cuts: list[Cut], work: RunningTotals) -> list[Cut]:
    best: dict[int, Cut] = {}
    for cut in sorted(cuts, key=lambda cut: cut.position):
        used = work.parameter_uses[cut.position]
        if 0 < used < work.parameter_uses[-1] and (used not in best or cut.sent_bytes <= best[used].sent_bytes):
            best[used] = cut
    return [best[used] for used in sorted(best)]


def _without_dominated(cuts: list[Cut], work: RunningTotals) -> list[Cut]:
    positions = [cut.position for cut in cuts]
    kept = []
    for cut in cuts:
        here = bisect_left(positions, cut.position)
        around = []
        for step in (-1, 1):
            other = here + step
            while 0 <= other < len(cuts):
                near = sorted((cut.position, positions[other]))
                if work.share(near[0], near[1]) >= _NEAR:
                    break
                around.append(cuts[other].sent_bytes)
                other += step
        if not any(sent <= cut.sent_bytes * _MUCH_LESS for sent in around):
            kept.append(cut)
    return kept


def _without_twins(cuts: list[Cut], work: RunningTotals) -> list[Cut]:
    kept: list[Cut] = []
    for cut in cuts:
        if kept and work.share(kept[-1].position, cut.position) < _SAME:
            if cut.sent_bytes < kept[-1].sent_bytes:
                kept[-1] = cut
        else:
            kept.append(cut)
    return kept


def _merged(positions: list[int], work: RunningTotals, most_units: int) -> tuple[int, ...]:
    positions = list(positions)
    while len(positions) - 1 > most_units:
        spans = [work.share(start, end) for start, end in pairwise(positions)]
        cheapest = min(range(len(spans) - 1), key=lambda i: spans[i] + spans[i + 1])
        del positions[cheapest + 1]
    return tuple(positions)


@dataclass(frozen=True)
class Pairing:
    """Which positions and values of the evaluation graph correspond to those of the training graph."""

    positions: tuple[int, ...]
    """For every position of the training graph, its end included: the position in the evaluation graph."""
    names: dict[str, str]
    """Training value → evaluation value."""

    def translated(self, item: Reference) -> Reference | None:
        """What corresponds in evaluation to an item of the training graph; None if nothing does."""
        if not isinstance(item, Value):
            return item
        name = self.names.get(item.name)
        return None if name is None else Value(name)


def pair(train: GraphLayout, evaluate: GraphLayout) -> Pairing:
    """Pair the operations of the two modes."""
    ours, theirs = [[_key(op) for op in layout.operations] for layout in (train, evaluate)]
    names = {name: name for name in train.converted.inputs}
    counterpart: dict[int, int] = {}
    for start, other, length in _matching_blocks(ours, theirs):
        for offset in range(length):
            counterpart[start + offset] = other + offset
            names[train.operations[start + offset].name] = evaluate.operations[other + offset].name
    _pair_arguments(train, evaluate, counterpart, names)
    positions = [0]
    for position in range(len(ours)):
        positions.append(counterpart[position] + 1 if position in counterpart else positions[-1])
    positions[-1] = len(theirs)
    return Pairing(tuple(positions), names)


def _pair_arguments(
    train: GraphLayout, evaluate: GraphLayout, counterpart: dict[int, int], names: dict[str, str]
) -> None:
    # What paired operations read in the same place corresponds too, even where another operation made it: where
    # training adds noise to x, the sum in training is x itself in evaluation.
    for ours, theirs in counterpart.items():
        left, right = train.operations[ours].references(), evaluate.operations[theirs].references()
        for mine, other in zip(left, right, strict=False):
            if isinstance(mine, Value) and isinstance(other, Value):
                names.setdefault(mine.name, other.name)


def agrees(
    train: GraphLayout, evaluate: GraphLayout, pairing: Pairing, position: int, tied: Collection[str] = frozenset()
) -> bool:
    """Whether both modes can be cut at this position of the training graph, and send the same kinds of tensors there.

    `tied`: parameters that may be used on both sides.
    """
    there = pairing.positions[position]
    sent = set()
    for item in train.alive[position]:
        other = pairing.translated(item)
        if other is None or not evaluate.can_travel(other) or not _same_kind(train, item, evaluate, other):
            return False
        sent.add(other)
    if not sent >= set(evaluate.alive[there]) or len(sent) < len(train.alive[position]):
        return False
    if any(evaluate.defined(item) > there for item in sent):
        return False
    if any(first < there <= last for first, last in evaluate.joined):
        return False
    return not any(
        _is_divided(train.anchored.get(name), position, evaluate.anchored.get(name), there)
        for layout in (train, evaluate)
        for name in layout.anchored
        if name not in tied
    )


def _is_divided(ours: tuple[int, int] | None, position: int, theirs: tuple[int, int] | None, there: int) -> bool:
    """Whether a weight, of which the first and the last use in both modes are given, is used on both sides."""
    before = (ours is not None and ours[0] < position) or (theirs is not None and theirs[0] < there)
    return before and ((ours is not None and ours[1] >= position) or (theirs is not None and theirs[1] >= there))


def _same_kind(train: GraphLayout, item: Reference, evaluate: GraphLayout, other: Reference) -> bool:
    if not isinstance(item, Value) or not isinstance(other, Value):
        return item == other
    ours, theirs = train.measured.tensors.get(item.name), evaluate.measured.tensors.get(other.name)
    if ours is None or theirs is None:
        return ours is theirs
    shapes = train.converted.shapes[item.name], evaluate.converted.shapes[other.name]
    return ours.dtype == theirs.dtype and shapes[0] == shapes[1]


def _key(operation: Operation) -> tuple[str, str]:
    return operation.scope, operation.target


def _matching_blocks(ours: list[tuple[str, str]], theirs: list[tuple[str, str]]) -> list[tuple[int, int, int]]:
    # Mostly the graphs are equal up to a few operations: what is equal at both ends is paired without a search.
    shortest = min(len(ours), len(theirs))
    head = next((i for i in range(shortest) if ours[i] != theirs[i]), shortest)
    tail = next((i for i in range(shortest - head) if ours[-1 - i] != theirs[-1 - i]), shortest - head)
    middle = SequenceMatcher(None, ours[head : len(ours) - tail], theirs[head : len(theirs) - tail], autojunk=False)
    blocks = [(0, 0, head)]
    blocks += [(a + head, b + head, size) for a, b, size in middle.get_matching_blocks()]
    return [*blocks, (len(ours) - tail, len(theirs) - tail, tail)]
