"""What each unit of a model owns, uses and costs.

In: graphs that were laid out (liveness.py) and measured (operation_costs.py), and the positions of the cuts. Out: the
unit that owns each parameter, the parameters that may lie in several units, and each unit's FLOPs and bytes. Where the
cuts are is decided in cuts.py.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate, pairwise

import torch
from torch import nn

from cluster_planner import Unit
from ravnest.splitting.cuts import Pairing, RunningTotals
from ravnest.splitting.liveness import GraphLayout
from ravnest.splitting.model_source import aliases
from ravnest.splitting.program import HALVES, Value, is_narrow, weights_read

_LARGEST_SHARE = 0.5
"""Of the model's parameter uses or work: when more lies between the uses of a parameter, it may be cut between."""


def work_of(layout: GraphLayout) -> RunningTotals:
    """The running totals of FLOPs, parameter bytes and uses of parameters over the positions of a graph."""
    flops = [facts.flops for facts in layout.measured.operations]
    held = [0] * len(flops)
    uses = [0] * len(flops)
    for name, spec in layout.converted.parameters.items():
        if name in layout.anchored:
            held[layout.anchored[name][0]] += spec.size_bytes
    for position, operation in enumerate(layout.operations):
        names = weights_read((operation,))
        uses[position] = int(bool(names & layout.converted.parameters.keys()))
    return RunningTotals(*(tuple(accumulate(values, initial=0)) for values in (flops, held, uses)))


def sent_bytes(layout: GraphLayout, position: int) -> tuple[int, int, int]:
    """What a cut at `position` sends for the whole sample, in bytes: forward, back, and what of that has 16 bits."""
    forward = back = halves = 0
    for item in layout.alive[position]:
        facts = layout.measured.tensors.get(item.name) if isinstance(item, Value) else None
        size = facts.size_bytes if facts else torch.int64.itemsize
        forward += size
        if facts and facts.needs_gradient:
            back += size
            halves += size if facts.dtype in HALVES else 0
    return forward, back, halves


def homes_of(train: GraphLayout, evaluate: GraphLayout, pairing: Pairing, positions: tuple[int, ...]) -> dict[str, int]:
    """The unit that owns each parameter, and each persistent buffer that the graph never reads.

    What the forward never reads must still be saved: such a parameter stays with the one listed before it, such a
    buffer in unit 0.
    """
    there = [pairing.positions[position] for position in positions]
    used: dict[str, int] = {}
    for layout, ends in ((evaluate, there), (train, positions)):
        for name, (first, _) in layout.anchored.items():
            used[name] = bisect_right(ends, first) - 1
    graphs = (train.converted.graph, evaluate.converted.graph)
    read = {name for graph in graphs for name in weights_read(graph.operations, graph.outputs)}
    homes: dict[str, int] = {}
    home = 0
    for name in train.converted.parameters:
        home = homes[name] = used.get(name, home)
    for name, spec in train.converted.buffers.items():
        if spec.persistent and name not in read:
            homes[name] = 0
    return homes


def users_of(
    train: GraphLayout, evaluate: GraphLayout, pairing: Pairing, positions: tuple[int, ...], tied: frozenset[str]
) -> dict[str, tuple[int, ...]]:
    """The units that read each of `tied`, in either mode; without those that one unit alone reads."""
    there = tuple(pairing.positions[position] for position in positions)
    units: dict[str, set[int]] = {}
    for layout, ends in ((train, positions), (evaluate, there)):
        for position, operation in enumerate(layout.operations):
            for name in weights_read((operation,)) & tied:
                units.setdefault(name, set()).add(bisect_right(ends, position) - 1)
    return {name: tuple(sorted(found)) for name, found in sorted(units.items()) if len(found) > 1}


def units_of(
    layout: GraphLayout,
    positions: tuple[int, ...],
    homes: dict[str, int],
    samples: int,
    users: Mapping[str, tuple[int, ...]],
) -> tuple[Unit, ...]:
    """The units between `positions`, with costs for one sample. `samples`: how many the graph was measured with."""
    parameter_bytes = [0] * (len(positions) - 1)
    narrow_bytes = list(parameter_bytes)
    names: list[list[tuple[int, str]]] = [[] for _ in parameter_bytes]
    for name, spec in layout.converted.parameters.items():
        parameter_bytes[homes[name]] += spec.size_bytes
        if name in layout.anchored and spec.requires_grad and is_narrow(spec.dtype):
            parameter_bytes[homes[name]] += spec.size_bytes  # a master has 32 bits
            narrow_bytes[homes[name]] += spec.size_bytes
        if name in layout.anchored:
            for index in users.get(name, (homes[name],)):
                names[index].append((layout.anchored[name][0], name.rpartition(".")[0] or name))
    units = []
    for index, (start, end) in enumerate(pairwise(positions)):
        facts = layout.measured.operations[start:end]
        last = end == positions[-1]
        forward, back, halves = (0, 0, 0) if last else sent_bytes(layout, end)
        held = [name for _, name in sorted(names[index])]
        units.append(
            Unit(
                name=held[0] if held[0] == held[-1] else f"{held[0]}..{held[-1]}",
                flops=sum(fact.flops for fact in facts) / samples,
                moved_bytes=math.ceil(sum(fact.moved_bytes for fact in facts) / samples),
                parameter_bytes=parameter_bytes[index],
                narrow_bytes=narrow_bytes[index],
                saved_bytes=math.ceil(sum(fact.saved_bytes for fact in facts) / samples),
                boundary_bytes=math.ceil(forward / samples),
                boundary_gradient_bytes=math.ceil(back / samples),
                boundary_narrow_bytes=math.ceil(halves / samples),
                tied_bytes=sum(
                    layout.converted.parameters[name].size_bytes
                    for name, (home, *others) in users.items()
                    if home <= index < others[-1] and layout.converted.parameters[name].requires_grad
                ),
                borrowed_bytes=sum(
                    layout.converted.parameters[name].size_bytes
                    for name, (_, *others) in users.items()
                    if index in others and layout.converted.parameters[name].requires_grad
                ),
            )
        )
    return tuple(units)


def tied_parameters(model: nn.Module, layout: GraphLayout, work: RunningTotals) -> frozenset[str]:
    """The parameters that may lie in several stages, so that a cut may lie between their uses.

    These are the ones with several names, and the ones whose uses have most of the model between them. The uses of any
    other parameter stay in one unit, so that it has one owner and nothing about it travels.
    """
    found = set(aliases(model))
    for name in layout.converted.parameters:
        first, last = layout.anchored.get(name, (0, 0))
        if last <= first:
            continue
        places = [layout.operations[position].scope for position in (first, last)]
        # Two modules that share a parameter are tied; one module may use its own several times.
        start, end = (first + 1, last) if places[0] == places[1] else (first, last + 1)
        uses = (work.parameter_uses[end] - work.parameter_uses[start]) / work.parameter_uses[-1]
        if max(uses, work.share(start, end)) > _LARGEST_SHARE:
            found.add(name)
    return frozenset(found)
