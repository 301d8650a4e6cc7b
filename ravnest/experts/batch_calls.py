"""The calls of one batch: each sample's experts are found and asked, and in the backward they are taught.

In: samples, the gate's numbers, and who finds and calls experts. Out: outputs, and a tensor that says who gave them,
from which the backward goes on. So nothing is kept between the two but tensors.

    asked    (samples, k, dimensions + 2) int64: an expert's coordinates, the number of its host, and its updates when
             it answered; −1 throughout where a sample has fewer than k answers
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from ravnest.errors import ExpertsUnavailable
from ravnest.experts.answer_times import MOST_S
from ravnest.experts.beam_search import BeamSearch
from ravnest.experts.calls import Answered, Call, Failed
from ravnest.experts.config import ExpertsConfig
from ravnest.experts.grid import Expert

ATTEMPTS = 4
"""Searches for a batch: whoever has too few answers looks for other experts."""

PAUSE_S = 1.0
"""Before another search when there was nobody else to ask; then all may be asked again."""

GRACE_S = 30.0
"""How much longer than its deadline an answer's future is waited for: the client's thread gives it its result."""

HOST, UPDATES = -2, -1
"""Places in the last dimension of `asked`, behind the coordinates."""


class Caller(Protocol):
    """Who finds and calls experts: an `ExpertsClient`, or what stands in for one."""

    config: ExpertsConfig

    def find(self, search: BeamSearch) -> list[list[tuple[Expert, str]]]:
        """Go through a search that has just begun; returns each sample's experts with their hosts, the best first."""
        ...

    def call(self, calls: Sequence[Call]) -> Sequence[Future[Answered | Failed]]:
        """Send calls, all at the same time. Each future has its result within MOST_S, and never an exception."""
        ...


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
        self.batches = 0
        self.waited_s = 0.0
        """Of the forwards and backwards of whole batches: how many there were, and how long their callers waited."""
        self._lock = Lock()

    def __deepcopy__(self, memo: object) -> MixtureFigures:
        return self

    def __repr__(self) -> str:
        with self._lock:
            shown = ((name, value) for name, value in vars(self).items() if not name.startswith("_"))
            told = ((name, dict(value) if isinstance(value, Counter) else value) for name, value in shown)
            return f"MixtureFigures({', '.join(f'{name}={value!r}' for name, value in told)})"

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

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time inside as that of one batch's forward or backward."""
        began_s = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                self.batches += 1
                self.waited_s += time.monotonic() - began_s

    def count(self, *, searched_again: int = 0, without_gradient: int = 0) -> None:
        with self._lock:
            self.searched_again += searched_again
            self.samples_without_gradient += without_gradient


_Row = TypeVar("_Row", int, tuple[int, int])


@dataclass
class Asker:
    """A caller, what it has asked, and the numbers by which `asked` names hosts. Any thread may use it."""

    caller: Caller
    figures: MixtureFigures = field(default_factory=MixtureFigures)
    most_silent: int = 0
    """Backwards in a row that nobody answers and that count as dropped out; one more raises. 0 where the caller's loop
    counts such batches by itself."""
    _silent: int = 0
    _hosts: list[str] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock)

    def __deepcopy__(self, memo: object) -> Asker:
        return self

    def number_of(self, host: str) -> int:
        """The number of a host, a new one where it has none yet."""
        with self._lock:
            if host not in self._hosts:
                self._hosts.append(host)
            return self._hosts.index(host)

    def host(self, number: int) -> str:
        """The host with this number."""
        return self._hosts[number]

    def backward_was(self, *, silent: bool) -> bool:
        """Note whether nobody answered a backward; returns whether there were too many such in a row."""
        with self._lock:
            self._silent = self._silent + 1 if silent else 0
            return self._silent > self.most_silent


def ask(
    asker: Asker, samples: Tensor, numbers: Tensor, *, k: int, k_min: int, width: int, training: bool
) -> tuple[Tensor, Tensor]:
    """The outputs of each sample's experts, (samples, k, *output_shape), zeros where it has fewer than k answers; and
    `asked`. numbers: (samples, coordinates of all dimensions), as the gate gives them.

    Raises ExpertsUnavailable where a sample has fewer than `k_min` answers after ATTEMPTS searches.
    """
    batch = _Forward(asker, samples, numbers, k, width, training)
    for attempt in range(ATTEMPTS):
        rows = [row for row, found in enumerate(batch.answers) if len(found) < (k_min if attempt else k)]
        if not rows:
            break
        if attempt:
            asker.figures.count(searched_again=len(rows))
        if not batch.look(rows) and attempt + 1 < ATTEMPTS:
            time.sleep(PAUSE_S)
            batch.may_ask_again(rows)
    short = sum(len(one) < k_min for one in batch.answers)
    if short:
        raise ExpertsUnavailable(
            f"{short} of {len(samples)} samples have fewer than k_min = {k_min} answers of "
            f"{asker.caller.config.name!r} after {ATTEMPTS} searches"
        )
    return batch.outputs, torch.tensor(batch.asked())


def teach(asker: Asker, samples: Tensor, gradient: Tensor, asked: Tensor, *, backward_k_min: int) -> Tensor:
    """The gradient of the samples, by what `ask` returned and the gradient of its outputs. The experts learn from it.

    Raises ExpertsUnavailable where no sample has `backward_k_min` answers, more often in a row than the asker allows.
    """
    groups: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for row, slots in enumerate(asked.tolist()):
        for slot, one in enumerate(slots):
            if one[UPDATES] >= 0:
                groups.setdefault(tuple(one), []).append((row, slot))
    calls, places = [], []
    for key, found in groups.items():
        for piece in _pieces(found, asker.caller.config.request_samples):
            rows, slots = [row for row, _ in piece], [slot for _, slot in piece]
            tensors = samples[rows], gradient[rows, slots]
            calls.append(Call(key[:HOST], asker.host(key[HOST]), tensors, True, key[UPDATES]))
            places.append(rows)
    of_samples = torch.zeros_like(samples)
    alive = torch.zeros(len(samples), dtype=torch.int64)
    why: set[str] = set()
    for rows, result in zip(places, _results(asker, calls, "backward"), strict=True):
        if isinstance(result, Answered):
            of_samples[rows] += result.tensor
            alive[rows] += 1
        elif isinstance(result, Failed):
            why.add(result.why)
    short = alive < backward_k_min
    if asker.backward_was(silent=bool(short.all())):
        reasons = "; ".join(sorted(why)) or "nobody was asked"
        raise ExpertsUnavailable(f"no sample had backward_k_min = {backward_k_min} answers in the backward: {reasons}")
    asker.figures.count(without_gradient=int(short.sum()))
    of_samples[short] = 0.0
    return of_samples


class _Forward:
    """The forward of one batch."""

    def __init__(self, asker: Asker, samples: Tensor, numbers: Tensor, k: int, width: int, training: bool) -> None:
        self._asker, self._samples, self._k, self._width, self._training = asker, samples, k, width, training
        config = asker.caller.config
        self._dimensions, self._most = len(config.grid), config.request_samples
        self._scores = [[list(part) for part in _parts(row, config.grid)] for row in numbers.tolist()]
        self.answers: list[list[tuple[int, ...]]] = [[] for _ in samples]
        """By sample: coordinates, host and updates of those who have answered."""
        self._tried: list[set[Expert]] = [set() for _ in samples]
        self.outputs = samples.new_zeros(len(samples), k, *config.out_shape)

    def look(self, rows: Sequence[int]) -> bool:
        """Find experts for these samples, and ask them; False where there is nobody to ask."""
        search = BeamSearch(
            [self._scores[row] for row in rows],
            width=self._width,
            best=self._k,
            without=[self._tried[row] for row in rows],
        )
        found = self._asker.caller.find(search)
        wanted: dict[tuple[Expert, str], list[int]] = {}
        for row, experts in zip(rows, found, strict=True):
            for expert, host in experts[: self._k - len(self.answers[row])]:
                self._tried[row].add(expert)
                wanted.setdefault((expert, host), []).append(row)
        asked = [(key, piece) for key, all_rows in wanted.items() for piece in _pieces(all_rows, self._most)]
        calls = [Call(expert, host, (self._samples[piece],), self._training) for (expert, host), piece in asked]
        for ((expert, host), piece), result in zip(asked, _results(self._asker, calls, "forward"), strict=True):
            if isinstance(result, Answered):
                number = self._asker.number_of(host)
                self.outputs[piece, [len(self.answers[row]) for row in piece]] = result.tensor
                for row in piece:
                    self.answers[row].append((*expert, number, result.updates))
        return bool(asked)

    def may_ask_again(self, rows: Sequence[int]) -> None:
        """Those who have not answered these samples may be asked once more."""
        for row in rows:
            self._tried[row] = {one[:HOST] for one in self.answers[row]}

    def asked(self) -> list[list[tuple[int, ...]]]:
        """What the tensor `asked` holds."""
        nobody = (-1,) * (self._dimensions + 2)
        return [found + [nobody] * (self._k - len(found)) for found in self.answers]


def _results(asker: Asker, calls: Sequence[Call], kind: str) -> list[object]:
    futures = asker.caller.call(calls)
    results: list[object] = [future.result(MOST_S + GRACE_S) for future in futures]
    asker.figures.sent(results, kind)
    return results


def _pieces(rows: Sequence[_Row], most: int) -> Iterator[list[_Row]]:
    return (list(rows[start : start + most]) for start in range(0, len(rows), most))


def _parts(row: Sequence[float], sides: Sequence[int]) -> Iterator[Sequence[float]]:
    start = 0
    for side in sides:
        yield row[start : start + side]
        start += side
