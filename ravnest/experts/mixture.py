"""RemoteMixtureOfExperts: a layer whose experts are hosted elsewhere, as an ordinary torch.nn.Module with autograd.

In: a batch of samples. Out: for each, the mean of its experts' outputs, weighted by the softmax of their scores over
those who have answered. Who does not answer in time counts as dropped out: its weight goes to the others, and it gets
no gradient. In the backward each expert that has answered gets the gradient of its output, learns from it at its host,
and returns that of its input.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from ravnest.errors import ExpertsUnavailable, InvalidInput
from ravnest.experts.answer_times import MOST_S
from ravnest.experts.calls import Answered, Call
from ravnest.experts.client import ExpertsClient
from ravnest.experts.gate import ProductKeyGate, balance_loss
from ravnest.experts.grid import Expert

ATTEMPTS = 4
"""Searches for a batch: whoever has too few answers looks for other experts."""

PAUSE_S = 1.0
"""Before another search when there was nobody else to ask; then all may be asked again."""

GRACE_S = 30.0
"""How much longer than its deadline an answer's future is waited for: the client's thread gives it its result."""


class MixtureFigures:
    """What a layer has asked, and what was dropped out. Shared by copies of a layer; counts have a lock."""

    def __init__(self) -> None:
        self.forwards = self.backwards = 0
        """Requests that were sent."""
        self.dropped: Counter[str] = Counter()
        """Requests that failed, by "forward" or "backward" and why."""
        self.staleness: Counter[int] = Counter()
        """Updates by how many the expert had had since the forward."""
        self.searched_again = 0
        """Samples that had too few answers, and looked for other experts."""
        self.samples_without_gradient = 0
        """Samples with fewer answers in the backward than `backward_k_min`."""
        self._lock = Lock()

    def __deepcopy__(self, memo: object) -> MixtureFigures:
        return self

    def sent(self, results: Sequence[object], kind: str) -> None:
        """Count requests and what came of them."""
        with self._lock:
            if kind == "forward":
                self.forwards += len(results)
            else:
                self.backwards += len(results)
            for result in results:
                if not isinstance(result, Answered):
                    self.dropped[f"{kind}: {getattr(result, 'why', 'late')}"] += 1
                elif kind == "backward":
                    self.staleness[result.staleness] += 1

    def count(self, *, searched_again: int = 0, without_gradient: int = 0) -> None:
        with self._lock:
            self.searched_again += searched_again
            self.samples_without_gradient += without_gradient


class RemoteMixtureOfExperts(nn.Module):
    """Calls the `k` best of a grid of experts for each sample.

    `balance` is the load-balancing loss of the last forward in training; add it to the loss with a small factor.
    """

    def __init__(
        self,
        client: ExpertsClient,
        *,
        k: int = 4,
        k_min: int = 1,
        backward_k_min: int = 1,
        width: int | None = None,
    ) -> None:
        """
        Arguments:
            client: joined to the table in which the experts are; copies of the layer share it.
            k: experts of each sample.
            k_min: with fewer answers a sample looks for other experts, and at last forward raises ExpertsUnavailable.
            backward_k_min: a sample with fewer answers in the backward passes no gradient on to what is below. When
                that is so for the whole batch, backward raises ExpertsUnavailable.
            width: of the beam search (see BeamSearch); k without it.
        """
        super().__init__()
        grid = client.config.places
        if not 1 <= k_min <= k <= len(grid):
            raise InvalidInput(f"expected 1 ≤ k_min ≤ k ≤ {len(grid)} experts, not {k_min} and {k}", key="k_min")
        if not 0 <= backward_k_min <= k:
            raise InvalidInput(f"expected 0 to k = {k}, not {backward_k_min}", key="backward_k_min")
        if width is not None and width < 1:
            raise InvalidInput(f"expected 1 or more, not {width}", key="width")
        self.client = client
        self.k, self.k_min, self.backward_k_min = k, k_min, backward_k_min
        self.width = width or k
        self.gate = ProductKeyGate(torch.Size(client.config.input_shape).numel(), grid.sides)
        self.figures = MixtureFigures()
        self.balance: Tensor | None = None

    def __getstate__(self) -> dict[str, Any]:
        """For copies of the layer, which begin without a last forward."""
        return {**self.__dict__, "balance": None}

    def forward(self, samples: Tensor) -> Tensor:
        """(samples, *input_shape) → (samples, *output_shape). Raises InvalidInput, ExpertsUnavailable."""
        config = self.client.config
        if tuple(samples.shape[1:]) != config.input_shape or samples.dtype != torch.float32 or not len(samples):
            expected = ("n", *config.input_shape)
            raise InvalidInput(
                f"expected float32 of shape {expected}, n at least 1, not {samples.dtype} {tuple(samples.shape)}"
            )
        numbers = self.gate(samples)
        self.balance = balance_loss(numbers) if self.training else None
        batch = _Batch(self, [one.detach() for one in numbers])
        # The experts are to learn even where nothing below the layer does, so one input always asks for gradients.
        asks = numbers[0].sum() * 0.0
        outputs: Tensor = _CallExperts.apply(samples, asks, batch)  # type: ignore[no-untyped-call]
        weights = self.gate.scores(numbers, batch.experts).softmax(-1)
        return (outputs * weights.view(*weights.shape, *[1] * len(config.out_shape))).sum(1)


@dataclass
class _Answer:
    """An expert's answer to some samples of the batch. slots: where its output lies in each sample's row."""

    expert: Expert
    host: str
    rows: list[int]
    slots: list[int]
    output: Tensor
    updates: int


@dataclass
class _Batch:
    """The calls of one forward, and of its backward."""

    layer: RemoteMixtureOfExperts
    numbers: Sequence[Tensor]
    answers: list[_Answer] = field(default_factory=list)
    experts: list[list[Expert]] = field(default_factory=list)
    """Those who have answered, by sample."""

    def forward(self, samples: Tensor) -> Tensor:
        """(samples, k, *output_shape), zeros where a sample has fewer than k answers."""
        layer, config = self.layer, self.layer.client.config
        count = len(samples)
        self.experts = [[] for _ in range(count)]
        tried: list[set[Expert]] = [set() for _ in range(count)]
        lists = [one.tolist() for one in self.numbers]
        for attempt in range(ATTEMPTS):
            rows = [row for row in range(count) if len(self.experts[row]) < (layer.k if not attempt else layer.k_min)]
            if not rows:
                break
            if attempt:
                layer.figures.count(searched_again=len(rows))
            scores = [[one[row] for one in lists] for row in rows]
            found = layer.client.find(scores, best=layer.k, width=layer.width, without=[tried[row] for row in rows])
            wanted: dict[tuple[Expert, str], list[int]] = {}
            for row, experts in zip(rows, found, strict=True):
                for expert, host in experts[: layer.k - len(self.experts[row])]:
                    tried[row].add(expert)
                    wanted.setdefault((expert, host), []).append(row)
            if wanted:
                self._ask(samples, wanted)
            elif attempt + 1 < ATTEMPTS:
                time.sleep(PAUSE_S)
                for row in rows:
                    tried[row] = set(self.experts[row])
        least = min(map(len, self.experts))
        if least < layer.k_min:
            short = sum(len(one) < layer.k_min for one in self.experts)
            raise ExpertsUnavailable(
                f"{short} of {count} samples have fewer than k_min = {layer.k_min} answers of {config.name!r} "
                f"after {ATTEMPTS} searches"
            )
        outputs = samples.new_zeros(count, max(map(len, self.experts)), *config.out_shape)
        for answer in self.answers:
            outputs[answer.rows, answer.slots] = answer.output
        return outputs

    def _ask(self, samples: Tensor, wanted: dict[tuple[Expert, str], list[int]]) -> None:
        pieces = [(key, rows) for key, all_rows in wanted.items() for rows in self._pieces(all_rows)]
        training = self.layer.training
        calls = [Call(expert, host, (samples[rows],), training) for (expert, host), rows in pieces]
        results = self._results(calls, "forward")
        for ((expert, host), rows), result in zip(pieces, results, strict=True):
            if isinstance(result, Answered):
                slots = [len(self.experts[row]) for row in rows]
                for row in rows:
                    self.experts[row].append(expert)
                self.answers.append(_Answer(expert, host, rows, slots, result.tensor, result.updates))

    def backward(self, samples: Tensor, gradient: Tensor) -> Tensor:
        """The gradient of the samples. gradient: of what forward returned."""
        layer = self.layer
        calls = [
            Call(one.expert, one.host, (samples[one.rows], gradient[one.rows, one.slots]), True, one.updates)
            for one in self.answers
        ]
        results = self._results(calls, "backward")
        of_samples = torch.zeros_like(samples)
        alive = torch.zeros(len(samples), dtype=torch.int64)
        for answer, result in zip(self.answers, results, strict=True):
            if isinstance(result, Answered):
                of_samples[answer.rows] += result.tensor
                alive[answer.rows] += 1
        short = alive < layer.backward_k_min
        if bool(short.all()):
            raise ExpertsUnavailable(f"no sample had backward_k_min = {layer.backward_k_min} answers in the backward")
        layer.figures.count(without_gradient=int(short.sum()))
        of_samples[short] = 0.0
        return of_samples

    def _pieces(self, rows: list[int]) -> Iterator[list[int]]:
        most = self.layer.client.config.batch.most_samples
        return (rows[start : start + most] for start in range(0, len(rows), most))

    def _results(self, calls: Sequence[Call], kind: str) -> list[object]:
        futures = self.layer.client.call(calls)
        results: list[object] = [future.result(MOST_S + GRACE_S) for future in futures]
        self.layer.figures.sent(results, kind)
        return results


class _CallExperts(Function):
    """Forward and backward of a batch's calls."""

    @staticmethod
    def forward(ctx: Any, samples: Tensor, asks: Tensor, batch: _Batch) -> Tensor:
        ctx.save_for_backward(samples)
        ctx.batch = batch
        return batch.forward(samples.detach())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, None]:
        (samples,) = ctx.saved_tensors
        found = ctx.batch.backward(samples, gradient.contiguous())
        return (found if ctx.needs_input_grad[0] else None), gradient.new_zeros(()), None
