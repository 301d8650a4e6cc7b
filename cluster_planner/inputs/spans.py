"""The cost of any span of units per micro-batch: how the costs of units add up to those of a stage.

    compute   3·FLOPs·micro_batch + UPDATE_FLOPS·parameter bytes / update_every      (forward 1, backward 2)
    memory    process + parameter bytes·(max_staleness + 1 live versions, 1 gradient, optimizer state,
              1 + 2·max_lag averaging copies and state) + what W micro-batches in flight keep
              where weights are of a 16-bit type: smaller versions, a float32 master, a micro-batch's gradient

A stage before the last keeps the saved activations of up to W micro-batches. The last one runs each backward right
after its forward, so it keeps those of one micro-batch, and the inputs of the W − 1 that wait. No graph of its own is
alive when it makes an update, so it keeps one version of its weights. The optimizer's parameters are the newest
version, not one more. In a synchronous schedule each stage keeps the saved activations of as many micro-batches as the
schedule holds there (model_costs.py; with gpipe all of an update, at the last stage too), and one input that waits. A
stage that recomputes keeps the inputs instead, and the gradients that wait; its forward counts twice. It recomputes in
the way that takes less memory: all its units at once, which takes the activations of one micro-batch, or unit by unit,
which takes those of its largest unit, and of each micro-batch in flight the inputs of all units.

Tied parameters come on top where stages borrow them, and in the first and last stage the processes that read ahead.

The first and the last stage read the data. Without readers each reads a micro-batch before its forward, which takes
`reading_s` on top of its computing. With n readers it computes meanwhile, and waits where reading_s / n is more.

A model of more than MAX_POSITIONS cut positions is offered only that many, spread evenly over its cost, each where few
bytes cross.
"""

from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from cluster_planner.inputs.model_costs import SPLIT_KEEPS, ModelCosts, Workload

Floats: TypeAlias = NDArray[np.float64]

MAX_POSITIONS, COARSE_POSITIONS = 128, 12
"""Cuts are searched among at most this many positions, so that tables stay small; orders of nodes among the second."""

REMEMBERED = 100_000
"""The memory of about this many spans is kept: a search asks for the same ones again and again."""

UPDATE_FLOPS = 12.0
"""The FLOPs of one update per parameter byte: an estimate, since memory's rate limits updates (48 a float32 weight)."""


class SpanCosts:
    """Costs of any half-open span [start, end) of units, as differences of prefix sums."""

    def __init__(
        self,
        costs: ModelCosts,
        workload: Workload,
        most_positions: int = MAX_POSITIONS,
        *,
        edges: tuple[int, ...] | None = None,
    ) -> None:
        """`edges`: the only cut positions that a search may consider, with 0 and the number of units; None: any."""
        units = costs.units
        self._costs, self._most_positions, self._edges = costs, most_positions, edges
        self._memory_tables: dict[tuple[int, bool], Floats] = {}
        self._flops_tables: dict[bool, Floats] = {}
        self._memory_known: dict[tuple[int, int, int, bool], int] = {}
        self.count = len(units)
        self.workload = workload
        self._flops = _cumulative([unit.flops for unit in units])
        self._parameters = _cumulative([unit.parameter_bytes for unit in units])
        self._narrow = _cumulative([unit.narrow_bytes for unit in units])
        self._beyond_ratio = _cumulative([workload.optimizer_beyond_ratio(unit) for unit in units])
        self._saved = _cumulative([unit.saved_bytes for unit in units])
        self.forward_bytes = _at_cuts([workload.activation_bytes(unit) + workload.tied_bytes(unit) for unit in units])
        """[cut position] → bytes that a cut there sends forward per micro-batch; 0 at both ends of the model."""
        self.gradient_bytes = _at_cuts([workload.gradient_bytes(unit) + workload.tied_bytes(unit) for unit in units])
        """[cut position] → bytes that it sends back."""
        self._arriving = _at_cuts([workload.activation_bytes(unit) for unit in units])
        self._saved_of_units = np.array([unit.saved_bytes for unit in units], dtype=np.float64)
        self._crossing = _at_cuts([unit.boundary_bytes for unit in units])
        self._returning = _at_cuts([unit.boundary_gradient_bytes for unit in units])
        self._inner = np.cumsum(self._crossing)
        """[cut position] → what is alive at it and at all cuts before it, for one sample, in the model's precision."""
        self._tied = _at_cuts([unit.tied_bytes for unit in units])
        self._borrowed = _cumulative([unit.borrowed_bytes for unit in units])

    def under(self, workload: Workload) -> "SpanCosts":
        """Return the costs of the same model under another workload."""
        return SpanCosts(self._costs, workload, self._most_positions, edges=self._edges)

    @cached_property
    def coarse(self) -> "SpanCosts":
        """The same costs on COARSE_POSITIONS at most."""
        return SpanCosts(self._costs, self.workload, min(COARSE_POSITIONS, self._most_positions), edges=self._edges)

    def flops(self, start: int, end: int, *, recomputes: bool = False) -> float:
        """Return the FLOPs per micro-batch: forward (twice with `recomputes`), backward and the share of an update."""
        passes = 3.0 + recomputes
        return passes * self.forward_flops(start, end) + self.step_flops(start, end) / self.workload.update_every

    def forward_flops(self, start: int, end: int) -> float:
        """Return the FLOPs of one micro-batch's forward."""
        return float(self._flops[end] - self._flops[start]) * self.workload.micro_batch

    def step_flops(self, start: int, end: int) -> float:
        """Return the FLOPs of one update's optimizer step."""
        return UPDATE_FLOPS * self.parameter_bytes(start, end)

    def parameter_bytes(self, start: int, end: int) -> int:
        return int(self._parameters[end] - self._parameters[start])

    def with_reading(self, start: int, end: int, compute_s: float) -> float:
        """Return the seconds that a stage of that span takes per micro-batch, of which it computes `compute_s`."""
        if self.workload.reading_s == 0:
            return compute_s
        return float(self._read_too(np.asarray(compute_s), np.asarray(start == 0 or end == self.count)))

    def table_with_reading(self, compute_s: Floats) -> Floats:
        """Return `with_reading` of a table of seconds whose last two axes are positions."""
        reads = np.zeros((len(self.positions),) * 2, dtype=bool)
        reads[0], reads[:, -1] = True, True
        return self._read_too(compute_s, reads)

    def _read_too(self, compute_s: Floats, reads: NDArray[np.bool_]) -> Floats:
        work = self.workload
        if work.reading_s == 0:
            return compute_s
        if work.readers:
            read_s: Floats = np.maximum(compute_s, work.reading_s / work.readers)
        else:
            read_s = compute_s + work.reading_s
        return np.where(reads, read_s, compute_s)

    def borrowed_bytes(self, start: int, end: int) -> float:
        """Tied parameters that a stage of that span uses and that belong to an earlier one; of several, each at most
        as often as units use it."""
        return float(min(self._borrowed[end] - self._borrowed[start], self._tied[start]))

    def copied_bytes(self, start: int, end: int) -> float:
        """Tied parameters that a stage of that span uses as others do, with `tied: averaged`: borrowed or lent."""
        lent = max(0.0, float(self._tied[end] - self._tied[start]))
        return 0.0 if self._is_exact else max(self.borrowed_bytes(start, end), lent)

    def memory_bytes(self, start: int, end: int, window: int, *, recomputes: bool = False) -> int:
        """Return what a stage of that span needs with `window` micro-batches in flight (synchronous: held by it)."""
        key = (start, end, window, recomputes)
        if key not in self._memory_known:
            if len(self._memory_known) > REMEMBERED:
                self._memory_known.clear()
            self._memory_known[key] = self._memory_bytes(*key)
        return self._memory_known[key]

    def _memory_bytes(self, start: int, end: int, window: int, recomputes: bool) -> int:
        saved = float(self._saved[end] - self._saved[start]) * self.workload.micro_batch
        queued = float(self._arriving[start])
        if recomputes:
            waiting = (window + 1) * queued + window * float(self.gradient_bytes[end])
            in_flight = waiting + min(saved, self._unit_by_unit(start, end, window))
        elif self.workload.is_synchronous:
            in_flight = window * saved + queued
        else:
            in_flight = saved + (window - 1) * (queued if end == self.count else saved)
        held = self.weight_bytes(start, end)
        tied = self._borrowed_copies(last=end == self.count) * self.borrowed_bytes(start, end)
        tied += float(self._tied[end]) * self._is_exact
        work = self.workload
        process_bytes = work.process_bytes + (start == 0 or end == self.count) * work.readers * work.reader_bytes
        return round(process_bytes + held + in_flight + tied)

    def recomputes_unit_by_unit(self, start: int, end: int, place: tuple[int, int], window: int) -> bool:
        """Return whether a stage of that span, if it recomputes, takes less memory where it does so unit by unit.
        `place` and `window` as in `stage_memory_bytes`."""
        saved = float(self._saved[end] - self._saved[start]) * self.workload.micro_batch
        return self._unit_by_unit(start, end, self._in_flight(place, window)) < saved

    def _unit_by_unit(self, start: int, end: int, window: int) -> float:
        """Return what recomputing unit by unit keeps: the largest unit's saved activations, and of each micro-batch
        that has been forward the inputs of all units after the first."""
        kept = 1 if end == self.count and not self.workload.is_synchronous else window
        inner = float(self._inner[end - 1] - self._inner[start])
        return (float(self._saved_of_units[start:end].max()) + kept * inner) * self.workload.micro_batch

    def weight_bytes(self, start: int, end: int) -> float:
        """Return what a stage of that span holds of its own weights: all versions, masters, gradients, the optimizer's
        state and the copies of averaging."""
        last = end == self.count
        narrow = float(self._narrow[end] - self._narrow[start])
        held = self.parameter_copies(last=last) * self.parameter_bytes(start, end)
        return (
            held + self._masters_cost(last=last) * narrow + float(self._beyond_ratio[end] - self._beyond_ratio[start])
        )

    def host_bytes(self, start: int, end: int, window: int) -> int:
        """Return what a stage of that span on a GPU holds of its machine's own memory, beside its process.

        Averaging is done there, and tensors cross cuts through pinned blocks, which torch keeps for further copies:
        those of up to `window` micro-batches wait until they are sent, one arrives each way, and a block is up to
        twice as large as its tensor. The plan counts averaging in the GPU's memory, too.
        """
        work = self.workload
        averaging = (1 + 2 * work.max_lag + work.averaging_state_bytes_per_parameter_byte) * self.parameter_bytes(
            start, end
        )
        sent = self._crossing[end] + self._returning[start]
        arriving = self._crossing[start] + self._returning[end]
        return round(averaging + 2 * work.micro_batch * (window * float(sent) + float(arriving)))

    def host_table(self, window: int) -> Floats:
        """[i, j] → `host_bytes(positions[i], positions[j], window)`; of no use where j ≤ i."""
        work, at = self.workload, self.positions
        crossing, returning = self._crossing[at], self._returning[at]
        in_copies = 1 + 2 * work.max_lag + work.averaging_state_bytes_per_parameter_byte
        waits = window * (crossing + returning[:, None]) + crossing[:, None] + returning
        table: Floats = in_copies * self.parameter_table + 2 * work.micro_batch * waits
        return table

    def stage_host_bytes(self, start: int, end: int, place: tuple[int, int], window: int) -> int:
        """Return `host_bytes` of a stage that is number `place[0]` of `place[1]` stages."""
        return self.host_bytes(start, end, self._in_flight(place, window))

    def stage_memory_bytes(
        self, start: int, end: int, place: tuple[int, int], window: int, *, recomputes: bool = False
    ) -> int:
        """Return what a stage needs that is number `place[0]` of `place[1]` stages; a synchronous one minds no
        window.
        """
        return self.memory_bytes(start, end, self._in_flight(place, window), recomputes=recomputes)

    def _in_flight(self, place: tuple[int, int], window: int) -> int:
        index, stages = place
        return self.workload.held(stages, index) if self.workload.is_synchronous else window

    def split_bytes(self, start: int, end: int) -> int:
        """Return what a split backward keeps in a stage of that span, beside `memory_bytes`."""
        return round(SPLIT_KEEPS * float(self._saved[end] - self._saved[start]) * self.workload.micro_batch)

    def room_to_split(self, start: int, end: int, place: tuple[int, int], window: int, memory_bytes: int) -> int:
        """Return for how many micro-batches' saved activations a stage has memory when its backward may be split.

        It is 0 where the backward may not be split: in the first stage, which sends no gradient, where `memory_bytes`
        are too few, and where gradients of tied parameters come or leave (`tied: exact`), which have to be complete
        when an update's last gradient is.
        """
        index, stages = place
        needed = self.stage_memory_bytes(start, end, place, window) + self.split_bytes(start, end)
        tied = self._is_exact and (self._tied[start] > 0 or self._tied[end] > 0)
        if index == 0 or tied or not self.workload.splits_backward or needed > memory_bytes:
            return 0
        if self.workload.is_synchronous:
            return self.workload.held(stages, index) + SPLIT_KEEPS
        return (1 if end == self.count else window) + SPLIT_KEEPS

    @cached_property
    def positions(self) -> NDArray[np.int64]:
        """Return the cut positions that a search considers, 0 and the number of units included."""
        if self._edges is not None:
            return np.array(self._edges, dtype=np.int64)
        if self.count < self._most_positions:
            return np.arange(self.count + 1)
        return self._few_positions(self._most_positions)

    @cached_property
    def sent_bytes(self) -> float:
        """Return the bytes that one of these cuts sends forward per micro-batch, on average; 0 where there is none."""
        within = self.positions[1:-1]
        return float(self.forward_bytes[within].mean()) if len(within) else 0.0

    def flops_table(self, *, recomputes: bool = False) -> Floats:
        """[i, j] → `flops(positions[i], positions[j])`; infinite where j ≤ i."""
        if recomputes not in self._flops_tables:
            update = UPDATE_FLOPS / self.workload.update_every
            passes = (3.0 + recomputes) * self.workload.micro_batch
            flops = passes * self._between(self._flops) + update * self._between(self._parameters)
            self._flops_tables[recomputes] = _forward_only(flops)
        return self._flops_tables[recomputes]

    @cached_property
    def parameter_table(self) -> Floats:
        """[i, j] → parameter bytes between two positions; negative where j < i."""
        return self._between(self._parameters)

    def memory_table(self, window: int, *, recomputes: bool = False) -> Floats:
        """[i, j] → `memory_bytes(positions[i], positions[j], window)`; infinite where j ≤ i."""
        if (window, recomputes) not in self._memory_tables:
            self._memory_tables[window, recomputes] = self._memory_table(window, recomputes)
        return self._memory_tables[window, recomputes]

    def ways_that_fit(self, memory: Floats, host_memory: Floats, window: int) -> NDArray[np.bool_]:
        """Return which spans fit in which memory with `window` micro-batches in flight, keeping activations or
        recomputing.

        `memory`, `host_memory`: room of each node, and of a GPU's machine (Node). Returns [way, node, i, j] for the
        span from positions[i] to positions[j]: way 0 keeps activations, way 1 recomputes them. A way that the workload
        rules out fits nowhere.
        """
        mode = self.workload.activation_checkpointing
        needed = np.stack([self.memory_table(window), self.memory_table(window, recomputes=True)])
        allowed = np.array([mode != "always", mode != "never"])
        fits = allowed[:, None, None, None] & (needed[:, None] <= memory[None, :, None, None])
        if np.isfinite(host_memory).any():
            fits &= self.host_table(window) <= host_memory[None, :, None, None]
        return fits

    def _memory_table(self, window: int, recomputes: bool) -> Floats:
        saved = self._between(self._saved) * self.workload.micro_batch
        queued = self._arriving[self.positions]
        in_flight = saved * window
        if recomputes:
            in_flight = np.minimum(saved, self._unit_by_unit_table(window))
            in_flight += (window + 1) * queued[:, None] + window * self.gradient_bytes[self.positions]
        elif self.workload.is_synchronous:
            in_flight += queued[:, None]
        else:
            in_flight[:, -1] = saved[:, -1] + (window - 1) * queued
        copies = np.full(len(self.positions), self.parameter_copies(last=False))
        copies[-1] = self.parameter_copies(last=True)
        narrow = np.full(len(self.positions), self._masters_cost(last=False))
        narrow[-1] = self._masters_cost(last=True)
        tied = self._tied[self.positions]
        borrowed = np.full(len(self.positions), self._borrowed_copies(last=False))
        borrowed[-1] = self._borrowed_copies(last=True)
        held = in_flight + borrowed * np.minimum(self._between(self._borrowed), tied[:, None]) + tied * self._is_exact
        process_bytes = np.full(held.shape, float(self.workload.process_bytes))
        process_bytes[0] += (readers := float(self.workload.readers * self.workload.reader_bytes))
        process_bytes[1:, -1] += readers
        weights = copies * self.parameter_table + narrow * self._between(self._narrow)
        weights += self._between(self._beyond_ratio)
        return _forward_only(process_bytes + weights + held)

    def _unit_by_unit_table(self, window: int) -> Floats:
        """[i, j] → `_unit_by_unit` between two positions; of no use where j ≤ i."""
        at = self.positions
        largest = np.zeros((len(at), len(at)))
        of_parts = np.maximum.reduceat(self._saved_of_units, at[:-1])
        for i in range(len(of_parts)):
            largest[i, i + 1 :] = np.maximum.accumulate(of_parts[i:])
        kept = np.full(len(at), float(window))
        if not self.workload.is_synchronous:
            kept[-1] = 1.0
        inner = self._inner[np.maximum(at, 1) - 1][None, :] - self._inner[at][:, None]
        needed: Floats = (largest + kept * inner) * self.workload.micro_batch
        return needed

    def parameter_copies(self, *, last: bool) -> float:
        """Return how many times its parameter bytes a stage holds: live versions, gradient, optimizer, averaging (the
        anchor; of each round on its way the contribution and its average).
        """
        work = self.workload
        versions = self._versions(last=last)
        averaging = 1 + 2 * work.max_lag + work.averaging_state_bytes_per_parameter_byte
        weights = versions * (1 + work.cast_bytes_per_parameter_byte)
        return weights + 1 + work.optimizer_state_bytes_per_parameter_byte + averaging

    def _versions(self, *, last: bool) -> int:
        return 1 if last else self.workload.max_staleness + 1

    def _masters_cost(self, *, last: bool) -> float:
        """Return how many times the bytes of weights of a 16-bit type a stage holds beyond `parameter_copies`, which
        takes them for float32: a master (twice) and the gradient of one micro-batch more, and versions of half the
        size, which need no cast.
        """
        return 3.0 - self._versions(last=last) * (1 + 2 * self.workload.cast_bytes_per_parameter_byte)

    def _borrowed_copies(self, *, last: bool) -> float:
        """Return how many times the bytes of a tied parameter a stage holds that borrows it: live versions, the one
        that arrives, a gradient; a copy of its own takes what any parameter does. With `tied: exact` all before the
        last borrower hold one more gradient, of those behind.
        """
        if not self._is_exact:
            return self.parameter_copies(last=last)
        return self._versions(last=last) + 2

    @property
    def _is_exact(self) -> bool:
        return self.workload.tied == "exact"

    def _between(self, prefix: Floats) -> Floats:
        at = prefix[self.positions]
        return at[None, :] - at[:, None]

    def _few_positions(self, count: int) -> NDArray[np.int64]:
        weight = sum((p / p[-1] if p[-1] > 0 else p) for p in (self._flops, self._parameters, self._saved))
        weight = weight + np.linspace(0.0, 1e-3, self.count + 1)
        bins = np.searchsorted(np.linspace(0.0, weight[-1], count), weight, side="right")
        crossing = self.forward_bytes + self.gradient_bytes
        inner = np.arange(1, self.count)
        by_bytes = inner[np.lexsort((inner, crossing[inner], bins[inner]))]
        _, first = np.unique(bins[by_bytes], return_index=True)
        return np.concatenate(([0], np.sort(by_bytes[first]), [self.count]))


def _cumulative(values: list[float] | list[int]) -> Floats:
    return np.concatenate(([0.0], np.cumsum(np.asarray(values, dtype=np.float64))))


def _at_cuts(values: list[int]) -> Floats:
    at = np.concatenate(([0.0], np.asarray(values, dtype=np.float64)))
    at[-1] = 0.0
    return at


def _forward_only(table: Floats) -> Floats:
    return np.where(np.tri(len(table), dtype=bool), np.inf, table)
