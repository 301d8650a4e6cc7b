"""Capturing a model once, for the planner's side: what its units are, what they cost, and the program of any
span.

Nothing here needs the values of weights, and nothing it returns holds any. It decides how one model is cut
into units (by `units`), not which stage gets which of them."""

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn

from cluster_planner.costs import ModelCosts, Unit
from ravnest.errors import InvalidInput, ModelNotSplittable
from ravnest.splitting.conversion import convert
from ravnest.splitting.exporting import Exported, UnfitError, batch_size, refusal, ways_to_export
from ravnest.splitting.fingerprint import fingerprint
from ravnest.splitting.liveness import Layout, changed_weights, lay_out
from ravnest.splitting.measure import measure
from ravnest.splitting.modes import Pairing, agrees, pair
from ravnest.splitting.operations import Reference, Symbol, Value, Weight, weights_read
from ravnest.splitting.program import SpanCode, StageProgram, TensorSpec, ValueSpec
from ravnest.splitting.ties import refuse_spread, refuse_tied
from ravnest.splitting.units import Cut, Work, choose


@dataclass(frozen=True)
class CapturedModel:
    """A model as units, in both modes. Picklable; holds no weights."""

    costs: ModelCosts
    batch_is_dynamic: bool
    """False where the model only works at the sample's batch size: a shorter last batch must then be
    dropped."""
    train: Layout
    evaluate: Layout
    pairing: Pairing
    positions: tuple[int, ...]
    """Boundaries of the units in the training graph, both ends included."""
    homes: dict[str, int]
    """The unit of every parameter, and of every persistent buffer that the graph never reads."""

    @property
    def units(self) -> tuple[Unit, ...]:
        return self.costs.units

    @property
    def output_names(self) -> tuple[str, ...]:
        """Where in the model's output each tensor of the last stage stands: "output", "0", "logits",
        "hidden.1"."""
        return self.train.converted.output_names

    def parameter_names(self, start: int, end: int) -> tuple[str, ...]:
        """Names of the parameters in units [start, end), in the model's own order."""
        return tuple(spec.name for spec in self._parameters(start, end))

    def span(self, start: int, end: int) -> StageProgram:
        """The program of units [start, end). Raises InvalidInput where that is no span of this model."""
        count = len(self.units)
        if not 0 <= start < end <= count:
            raise InvalidInput(f"[{start}, {end}) is no span of a model of {count} units")
        codes = [self._code(start, end, evaluate=False), self._code(start, end, evaluate=True)]
        read = {name for code in codes for name in weights_read(code.operations, code.outputs)}
        converted = self.train.converted
        buffers = tuple(
            spec for name, spec in converted.buffers.items() if name in read or start <= self.homes.get(name, -1) < end
        )
        constants = {**self.evaluate.converted.constants, **converted.constants}
        return StageProgram(
            start=start,
            end=end,
            parameters=self._parameters(start, end),
            buffers=buffers,
            constants=tuple((name, constants[name]) for name in sorted(read & constants.keys())),
            inputs=tuple(self._spec(item) for item in self._items(start)),
            outputs=tuple(
                self._spec(item, name)
                for item, name in zip(
                    self._items(end),
                    self.output_names if end == count else [None] * len(self._items(end)),
                    strict=True,
                )
            ),
            train=codes[0],
            evaluate=codes[1],
            outputs_travel=end < count,
        )

    def _parameters(self, start: int, end: int) -> tuple[TensorSpec, ...]:
        return tuple(
            spec if name in self.train.anchored else TensorSpec(name, spec.shape, spec.dtype, False)
            for name, spec in self.train.converted.parameters.items()
            if start <= self.homes[name] < end
        )

    def _items(self, boundary: int) -> tuple[Reference, ...]:
        if boundary == 0:
            return tuple(Value(name) for name in self.train.converted.inputs)
        if boundary == len(self.units):
            return self.train.converted.graph.outputs
        return self.train.alive[self.positions[boundary]]

    def _code(self, start: int, end: int, *, evaluate: bool) -> SpanCode:
        first, last = self.positions[start], self.positions[end]
        inputs, outputs = self._items(start), self._items(end)
        if not evaluate:
            return self.train.code(first, last, inputs, outputs)
        there = self.pairing.positions
        results = (
            self.evaluate.converted.graph.outputs
            if end == len(self.units)
            else tuple(self._translated(item) for item in outputs)
        )
        received = tuple(self._translated(item) for item in inputs)
        return self.evaluate.code(there[first], there[last], received, results)

    def _translated(self, item: Reference) -> Reference:
        other = self.pairing.translated(item)
        assert other is not None
        return other

    def _spec(self, item: Reference, name: str | None = None) -> ValueSpec:
        return value_spec(self.train, item, name, travels=name is None)


def value_spec(layout: Layout, item: Reference, name: str | None = None, *, travels: bool = True) -> ValueSpec:
    """How an item looks where it enters or leaves a stage; `name` replaces its name in the graph."""
    name = name or item.name
    if isinstance(item, Weight):
        spec = (layout.converted.parameters | layout.converted.buffers).get(item.name)
        if spec is None:
            raise ModelNotSplittable(f"output {name!r} is a constant; return tensors that are computed")
        return ValueSpec(name, spec.dtype, spec.shape, spec.requires_grad)
    facts = layout.measured.tensors.get(item.name)
    if isinstance(item, Symbol) or facts is None:
        return ValueSpec(name, torch.int64, (), False, is_int=True)
    order = facts.order if travels else ()
    sizes = layout.converted.shapes[item.name]
    shape = tuple(size if isinstance(size, int) else None for size in sizes)
    return ValueSpec(
        name,
        facts.dtype,
        tuple(shape[dim] for dim in order) if order else shape,
        facts.needs_gradient,
        order=order,
    )


def capture(model: nn.Module, args: tuple[Tensor, ...], kwargs: Mapping[str, Tensor] | None = None) -> CapturedModel:
    """Capture a model on a sample batch.

    model: on the meta device (nothing is allocated) or on the CPU. It is not changed.
    args, kwargs: one micro-batch of inputs, batch dimension first; only shapes and dtypes matter. Raises
    ModelNotSplittable where the model is tied, cannot be exported, or does what stages cannot reproduce."""
    refuse_tied(model)
    failure: Exception | None = None
    for way in ways_to_export(model, args, kwargs or {}):
        try:
            exported = way.export()
        except InvalidInput:
            raise
        except Exception as error:  # noqa: BLE001 - torch.export raises errors of any kind
            failure = error
            continue
        try:
            return _captured(model, exported)
        except UnfitError as error:
            failure = error
    assert failure is not None
    raise refusal(model, failure) from failure


def _captured(model: nn.Module, exported: Exported) -> CapturedModel:
    modes = [convert(model, program, exported.input_names) for program in (exported.train, exported.evaluate)]
    measures = [measure(converted, exported.inputs) for converted in modes]
    changed = frozenset().union(*(changed_weights(c, m) for c, m in zip(modes, measures, strict=True)))
    train, evaluate = (lay_out(c, m, changed) for c, m in zip(modes, measures, strict=True))
    _require_same_outputs(train, evaluate)
    pairing = pair(train, evaluate)
    work = _work(train)
    if work.parameter_uses[-1] == 0:
        raise ModelNotSplittable(f"{type(model).__name__} has no parameter that its forward uses")
    refuse_spread(model, train, work)
    cuts = [
        Cut(position, sum(_sent_bytes(train, position)))
        for position in range(1, len(train.operations))
        if not any(first < position <= last for first, last in train.joined)
        and all(train.can_travel(item) for item in train.alive[position])
        and agrees(train, evaluate, pairing, position)
    ]
    positions = choose(cuts, work)
    homes = _homes(train, evaluate, pairing, positions)
    samples = batch_size(exported.inputs)
    units = _units(train, positions, homes, samples)
    mark = fingerprint((train, evaluate), positions)
    costs = ModelCosts(units, mark)
    return CapturedModel(costs, exported.batch_is_dynamic, train, evaluate, pairing, positions, homes)


def _require_same_outputs(train: Layout, evaluate: Layout) -> None:
    described = []
    for layout in (train, evaluate):
        specs = [
            value_spec(layout, item, name, travels=False)
            for item, name in zip(layout.converted.graph.outputs, layout.converted.output_names, strict=True)
        ]
        described.append([(spec.name, spec.dtype, spec.shape) for spec in specs])
    if described[0] != described[1]:
        names = [", ".join(name for name, _, _ in outputs) for outputs in described]
        raise ModelNotSplittable(
            f"the model returns other tensors in training ({names[0]}) than in evaluation ({names[1]})"
        )


def _work(layout: Layout) -> Work:
    flops = [facts.flops for facts in layout.measured.operations]
    held = [0] * len(flops)
    uses = [0] * len(flops)
    for name, spec in layout.converted.parameters.items():
        if name in layout.anchored:
            held[layout.anchored[name][0]] += spec.size_bytes
    for position, operation in enumerate(layout.operations):
        names = weights_read((operation,))
        uses[position] = int(bool(names & layout.converted.parameters.keys()))
    return Work(*(tuple(accumulate(values, initial=0)) for values in (flops, held, uses)))


def _sent_bytes(layout: Layout, position: int) -> tuple[int, int]:
    """Of the whole sample: forward, and back."""
    forward = back = 0
    for item in layout.alive[position]:
        facts = layout.measured.tensors.get(item.name) if isinstance(item, Value) else None
        size = facts.size_bytes if facts else torch.int64.itemsize
        forward += size
        back += size if facts and facts.needs_gradient else 0
    return forward, back


def _homes(train: Layout, evaluate: Layout, pairing: Pairing, positions: tuple[int, ...]) -> dict[str, int]:
    there = [pairing.positions[position] for position in positions]
    used: dict[str, int] = {}
    for layout, ends in ((evaluate, there), (train, positions)):
        for name, (first, _) in layout.anchored.items():
            used[name] = bisect_right(ends, first) - 1
    graphs = (train.converted.graph, evaluate.converted.graph)
    read = {name for graph in graphs for name in weights_read(graph.operations, graph.outputs)}
    # What the forward never reads must still be saved by someone: it stays with the parameter listed before
    # it.
    homes: dict[str, int] = {}
    home = 0
    for name in train.converted.parameters:
        home = homes[name] = used.get(name, home)
    for name, spec in train.converted.buffers.items():
        if spec.persistent and name not in read:
            homes[name] = 0
    return homes


def _units(layout: Layout, positions: tuple[int, ...], homes: dict[str, int], samples: int) -> tuple[Unit, ...]:
    parameter_bytes = [0] * (len(positions) - 1)
    names: list[list[tuple[int, str]]] = [[] for _ in parameter_bytes]
    for name, spec in layout.converted.parameters.items():
        parameter_bytes[homes[name]] += spec.size_bytes
        if name in layout.anchored:
            names[homes[name]].append((layout.anchored[name][0], name.rpartition(".")[0] or name))
    units = []
    for index, (start, end) in enumerate(pairwise(positions)):
        facts = layout.measured.operations[start:end]
        last = end == positions[-1]
        forward, back = (0, 0) if last else _sent_bytes(layout, end)
        held = [name for _, name in sorted(names[index])]
        units.append(
            Unit(
                name=held[0] if held[0] == held[-1] else f"{held[0]}..{held[-1]}",
                flops=sum(fact.flops for fact in facts) / samples,
                parameter_bytes=parameter_bytes[index],
                saved_bytes=math.ceil(sum(fact.saved_bytes for fact in facts) / samples),
                boundary_bytes=math.ceil(forward / samples),
                boundary_gradient_bytes=math.ceil(back / samples),
            )
        )
    return tuple(units)
