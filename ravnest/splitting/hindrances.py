"""Why a model cannot be cut, for a user who has more machines than units.

In: both modes of a model, laid out. Out: the operation, or the weight, that forbids most of the cuts which would
otherwise lie between two uses of parameters, as one sentence.
"""

from collections import Counter
from collections.abc import Collection

from ravnest.splitting.cuts import Pairing, RunningTotals, agrees
from ravnest.splitting.liveness import GraphLayout
from ravnest.splitting.program import Value


def why_whole(
    train: GraphLayout, evaluate: GraphLayout, pairing: Pairing, work: RunningTotals, tied: Collection[str]
) -> str:
    """What keeps a model of one unit together."""
    between = [
        position
        for position in range(1, len(train.operations))
        if 0 < work.parameter_uses[position] < work.parameter_uses[-1]
    ]
    if not between:
        return "only one operation of it uses parameters"
    reasons = Counter(_reason(train, evaluate, pairing, position, tied) for position in between)
    return max(reasons.items(), key=lambda found: found[1])[0]


def _reason(train: GraphLayout, evaluate: GraphLayout, pairing: Pairing, position: int, tied: Collection[str]) -> str:
    there = pairing.positions[position]
    for layout, place in ((train, position), (evaluate, there)):
        for first, last in layout.joined:
            if first < place <= last:
                return _changed(layout, first, last)
        for name, (first, last) in layout.anchored.items():
            if name not in tied and len(layout.sides(name, place)) > 1:
                ends = [layout.operations[end].described for end in (first, last)]
                return f"{name!r} is used by {ends[0]} and again by {ends[1]}, which must be in one stage"
    for item in train.alive[position]:
        if not train.can_travel(item):
            made = next((op.described for op in train.operations if Value(op.name) == item), item.name)
            return f"what {made} returns is needed behind it, and cannot be sent to another stage"
    if not agrees(train, evaluate, pairing, position, tied):
        return "training and evaluation do different things in most places, so that a cut would not fit both"
    return "a cut would save nothing: a unit would have next to no work and parameters"


def _changed(layout: GraphLayout, first: int, last: int) -> str:
    facts = layout.measured.operations
    shared = facts[first].reads & facts[last].reads
    changers = [place for place in range(first, last + 1) if facts[place].writes & shared] or [last]
    said = " and ".join(layout.operations[place].described for place in (first, last) if place != changers[0])
    changer = layout.operations[changers[0]].described
    return f"{changer} changes in place what is used by {said}: all must be in one stage; make a new tensor instead"
