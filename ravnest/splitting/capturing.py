"""Capturing a model once, for the planner's side.

In: a model, on the meta device where it can be, and a sample batch. Out: a `CapturedModel`: the units, what they cost,
and the program of any span of them. Nothing here needs the values of weights, and nothing it returns holds any. Which
stage gets which units is decided by the planner.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from cluster_planner import ModelCosts, Unit
from ravnest.errors import InvalidInput, ModelNotSplittable
from ravnest.splitting.conversion import Converted, Select
from ravnest.splitting.cuts import Cut, Pairing, agrees, choose, pair
from ravnest.splitting.exporting import UnfitError, batch_size, refusal, ways_to_export
from ravnest.splitting.hindrances import why_whole
from ravnest.splitting.liveness import GraphLayout, changed_weights, lay_out
from ravnest.splitting.model_source import aliases
from ravnest.splitting.operation_costs import measure
from ravnest.splitting.operators import registering_modules
from ravnest.splitting.output_structure import OutputTree
from ravnest.splitting.program import (
    LOSS_MODULE,
    Argument,
    Reference,
    SpanCode,
    StageProgram,
    Symbol,
    TensorSpec,
    Value,
    ValueSpec,
    Weight,
    weights_read,
)
from ravnest.splitting.units import homes_of, sent_bytes, tied_parameters, units_of, users_of, work_of
from ravnest.splitting.unrolling import Modes, converted, unrolled


@dataclass(frozen=True)
class CapturedModel:
    """A model as units, in both modes. It can be pickled and holds no weights."""

    costs: ModelCosts
    batch_is_dynamic: bool
    """False where the model works only at the sample's batch size: a shorter last batch must then be dropped."""
    train: GraphLayout
    evaluate: GraphLayout
    pairing: Pairing
    positions: tuple[int, ...]
    """The boundaries of the units in the training graph, both ends included."""
    homes: dict[str, int]
    """The unit of every parameter, and of every persistent buffer that the graph never reads."""
    tied: dict[str, tuple[int, ...]]
    """The units that use each parameter which may lie in several; the one that owns it comes first."""
    aliases: dict[str, tuple[str, ...]]
    """Parameter → its other names in the model."""
    whole_because: str = ""
    """Where the model is one unit: what keeps it together."""
    needs_values: str = ""
    """Where it could not be captured without the values of its weights: why."""
    loss_parameters: tuple[TensorSpec, ...] = ()
    """What the loss brings to the last stage: its own parameters, and its saved buffers."""
    loss_buffers: tuple[TensorSpec, ...] = ()
    short: Modes | None = None
    """The graphs of the same model with two of its equal blocks, where they were exported instead of the whole."""

    def with_loss(self, parameters: tuple[TensorSpec, ...], buffers: tuple[TensorSpec, ...]) -> "CapturedModel":
        """The model with the weights of a loss in its last unit. Without parameters it is the same model.

        Raises InvalidInput where the model has weights under the same prefix.
        """
        if not parameters:
            return self
        converted, prefix = self.train.converted, f"{LOSS_MODULE}."
        taken = next((name for name in (*converted.parameters, *converted.buffers) if name.startswith(prefix)), None)
        if taken is not None:
            message = f"the model has {taken!r}, and what begins with {prefix!r} are the loss's own parameters here"
            raise InvalidInput(message, key="loss", hint="give that submodule of the model another name")
        *units, last = self.units
        held = sum(spec.size_bytes for spec in parameters)
        units.append(replace(last, parameter_bytes=last.parameter_bytes + held))
        mark = hashlib.sha256(repr((self.costs.fingerprint, parameters, buffers)).encode()).hexdigest()[:32]
        costs = replace(self.costs, units=tuple(units), fingerprint=mark)
        return replace(self, costs=costs, loss_parameters=parameters, loss_buffers=buffers)

    @property
    def units(self) -> tuple[Unit, ...]:
        """The units, in execution order."""
        return self.costs.units

    @property
    def modes(self) -> tuple[Converted, Converted]:
        """The graphs of training and of evaluation."""
        return self.train.converted, self.evaluate.converted

    @property
    def output_names(self) -> tuple[str, ...]:
        """The place of each tensor of the last stage in the model's output: "output", "0", "logits", "hidden.1"."""
        return self.train.converted.output_names

    @property
    def returned(self) -> OutputTree:
        """How the tensors of the last stage stand in what the model returns."""
        return self.train.converted.output

    def parameter_names(self, start: int, end: int) -> tuple[str, ...]:
        """Names of the parameters in units [start, end), in the model's own order."""
        return tuple(spec.name for spec in self._parameters(start, end))

    def parameters_by_unit(self) -> list[tuple[TensorSpec, ...]]:
        """The parameters of each unit, as `span` has them."""
        found: list[list[TensorSpec]] = [[] for _ in self.units]
        for spec in self._parameters(0, len(self.units)):
            found[self.homes.get(spec.name, len(found) - 1)].append(spec)  # the loss's are in the last unit
        return [tuple(specs) for specs in found]

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
            buffers=(*buffers, *(self.loss_buffers if end == count else ())),
            constants=tuple((name, constants[name]) for name in sorted(read & constants.keys())),
            inputs=self._specs(start),
            outputs=self._specs(end),
            train=codes[0],
            evaluate=codes[1],
            outputs_travel=end < count,
            borrowed=tuple(
                converted.parameters[name]
                for name, (home, *others) in self.tied.items()
                if home < start and any(start <= unit < end for unit in others)
            ),
            changed=tuple(spec.name for spec in buffers if spec.name in self.train.anchored),
            imports=registering_modules(operation.target for code in codes for operation in code.operations),
            returned=self.returned if end == count else None,
        )

    def _parameters(self, start: int, end: int) -> tuple[TensorSpec, ...]:
        return tuple(
            spec if name in self.train.anchored else TensorSpec(name, spec.shape, spec.dtype, False)
            for name, spec in self.train.converted.parameters.items()
            if start <= self.homes[name] < end
        ) + (self.loss_parameters if end == len(self.units) else ())

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

    def _specs(self, boundary: int) -> tuple[ValueSpec, ...]:
        inside = 0 < boundary < len(self.units)
        names = self.output_names if boundary == len(self.units) else [None] * len(self._items(boundary))
        return tuple(
            value_spec(self.train, item, name, travels=inside)
            for item, name in zip(self._items(boundary), names, strict=True)
        )


def value_spec(layout: GraphLayout, item: Reference, name: str | None = None, *, travels: bool = True) -> ValueSpec:
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
    shape = tuple(shape[dim] for dim in order) if order else shape
    if travels and facts.dtype.is_complex:
        return ValueSpec(name, facts.dtype.to_real(), (*shape, 2), facts.needs_gradient, order=order, is_complex=True)
    return ValueSpec(name, facts.dtype, shape, facts.needs_gradient, order=order)


def capture(
    model: nn.Module,
    args: tuple[Tensor, ...],
    kwargs: Mapping[str, Tensor] | None = None,
    *,
    select: Select | None = None,
) -> CapturedModel:
    """Capture a model on a sample batch.

    model: on the meta device (nothing is allocated) or on the CPU. It is not changed.
    args, kwargs: one micro-batch of inputs, batch dimension first; only shapes and dtypes matter.
    select: chooses which of the model's outputs are computed; None: all of them.
    Raises ModelNotSplittable where the model cannot be exported, or does what stages cannot reproduce.
    """
    for modes in unrolled(model, args, kwargs or {}, select):
        try:
            return _captured(model, modes)
        except UnfitError:
            continue
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
            return _captured(model, converted(model, exported, select))
        except UnfitError as error:
            failure = error
    assert failure is not None
    raise refusal(model, failure) from failure


def captured_short(whole: CapturedModel, model: nn.Module) -> CapturedModel | None:
    """The capture of `model`, which has two of the equal blocks of the model of `whole`, without another export.

    None where the whole model was exported as it is, or the graphs of the short one cannot be used.
    """
    if whole.short is None:
        return None
    try:
        return _captured(model, whole.short).with_loss(whole.loss_parameters, whole.loss_buffers)
    except UnfitError:
        return None


def _captured(model: nn.Module, modes: Modes) -> CapturedModel:
    measures = [measure(converted, modes.inputs) for converted in modes.graphs]
    changed = frozenset().union(*(changed_weights(c, m) for c, m in zip(modes.graphs, measures, strict=True)))
    train, evaluate = (lay_out(c, m, changed) for c, m in zip(modes.graphs, measures, strict=True))
    _require_same_outputs(train, evaluate)
    pairing = pair(train, evaluate)
    work = work_of(train)
    if work.parameter_uses[-1] == 0:
        raise ModelNotSplittable(f"{type(model).__name__} has no parameter that its forward uses")
    apart = tied_parameters(model, train, work)
    cuts = [
        Cut(position, sum(sent_bytes(train, position)[:2]))
        for position in range(1, len(train.operations))
        if not any(first < position <= last for first, last in train.joined)
        and all(train.can_travel(item) for item in train.alive[position])
        and agrees(train, evaluate, pairing, position, apart)
    ]
    positions = choose(cuts, work)
    homes = homes_of(train, evaluate, pairing, positions)
    users = users_of(train, evaluate, pairing, positions, apart)
    homes |= {name: units[0] for name, units in users.items()}
    samples = batch_size(modes.inputs)
    units = units_of(train, positions, homes, samples, users)
    mark = fingerprint((train, evaluate), positions)
    costs = ModelCosts(units, mark)
    return CapturedModel(
        costs,
        modes.batch_is_dynamic,
        train,
        evaluate,
        pairing,
        positions,
        homes,
        users,
        aliases(model),
        whole_because=why_whole(train, evaluate, pairing, work, apart) if len(units) == 1 else "",
        short=modes.short,
    )


def _require_same_outputs(train: GraphLayout, evaluate: GraphLayout) -> None:
    described = []
    for layout in (train, evaluate):
        specs = [
            value_spec(layout, item, name, travels=False)
            for item, name in zip(layout.converted.graph.outputs, layout.converted.output_names, strict=True)
        ]
        described.append([(spec.name, spec.dtype, spec.shape) for spec in specs])
    if described[0] != described[1] or train.converted.output != evaluate.converted.output:
        names = [", ".join(name for name, _, _ in outputs) for outputs in described]
        raise ModelNotSplittable(
            f"the model returns other tensors in training ({names[0]}) than in evaluation ({names[1]})"
        )


def fingerprint(modes: Sequence[GraphLayout], positions: Sequence[int]) -> str:
    """32 hexadecimal digits that name a captured model: equal graphs, shapes, weights' names and cuts give equal ones.

    They depend on no process, object id or hash seed. Values are numbered, since their names in the exported graph are
    not part of the model. The values of constants are covered, those of weights are not.
    """
    digest = hashlib.sha256()
    for layout in modes:
        for line in _fingerprinted_lines(layout):
            digest.update(line.encode())
            digest.update(b"\n")
        for name, constant in sorted(layout.converted.constants.items()):
            digest.update(name.encode())
            digest.update(bytes(constant.contiguous().untyped_storage()))
    digest.update(repr(tuple(positions)).encode())
    return digest.hexdigest()[:32]


def _fingerprinted_lines(layout: GraphLayout) -> list[str]:
    converted = layout.converted
    numbers = {name: number for number, name in enumerate(converted.inputs)}
    lines = [f"input {name} {converted.shapes[name]} {layout.measured.tensors[name].dtype}" for name in numbers]
    lines += [repr(spec) for spec in (*converted.parameters.values(), *converted.buffers.values())]
    for operation in layout.operations:
        args = _numbered(operation.args, numbers)
        kwargs = sorted((key, repr(_numbered(argument, numbers))) for key, argument in operation.kwargs)
        numbers[operation.name] = len(numbers)
        shape = converted.shapes.get(operation.name)
        lines.append(f"{operation.target} {args!r} {kwargs!r} {operation.contexts!r} {shape}")
    lines.append(repr((_numbered(converted.graph.outputs, numbers), converted.output_names)))
    return lines


def _numbered(argument: Argument, numbers: dict[str, int]) -> Argument:
    if isinstance(argument, Value):
        return f"%{numbers[argument.name]}"
    if isinstance(argument, tuple):
        return tuple(_numbered(element, numbers) for element in argument)
    return argument
