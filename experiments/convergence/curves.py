"""What part `rate` trains: errors by K, of runs that the theorem is about and of controls that must fail its check.

Decides fleets, lengths and steps. Schedules are those that the machines made. A slope is taken where the predicted
transient is over (transient.py), and not at all where too few octaves are beyond it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from experiments.convergence import fleets
from experiments.convergence.cases import SEEDS, Case, objectives, table_of
from experiments.convergence.data import tumours
from experiments.convergence.fitting import LEAST_OCTAVES, OCTAVES, Interval, interval, slope
from experiments.convergence.objectives import Logistic, Quadratic
from experiments.convergence.replay import Merge
from experiments.convergence.schedule import Floats
from experiments.convergence.transient import Transient, descend, transient
from experiments.harness.report import Series

PIPELINE = fleets.Shape(stages=4, staleness=3)
FLEET = fleets.Shape(speeds=(1.0, 1.5), stages=2, staleness=2, round=4)
OVERLAPPING = fleets.equal(2, stages=2, staleness=1, round=4, lag=3, ring_rounds=3.2)
FIXED_AT = 2**8
"""The K whose step the control with a constant step keeps."""
OLD_DRAWS = 16
OFF_THE_PICTURE = 100.0
LATER = 8
"""The control with growing delay has T = K / LATER."""


@dataclass(frozen=True)
class Sizes:
    """How far each goes: K is 2⁶ to 2^longest updates of each cluster, in the fleet to 2^fleet, and so on."""

    longest: int
    fleet: int
    network: int
    controls: int
    delayed: int
    seeds: int = SEEDS


def sizes(*, quick: bool) -> Sizes:
    """Those of the report, or small ones."""
    return Sizes(15, 12, 0, 12, 10, 24) if quick else Sizes(18, 18, 17, 16, 13, 24)


@dataclass(frozen=True)
class Curve:
    """Errors by K: (lengths, seeds)."""

    name: str
    lengths: Sequence[int]
    errors: Floats
    bounds: Sequence[float] = ()
    transients: Sequence[Transient] = ()
    """None: all K are judged."""

    @property
    def settled(self) -> int:
        """The place of the first K from which on the transient is over, as far as K goes."""
        left = [place + 1 for place, each in enumerate(self.transients) if not each.is_over]
        return max(left, default=0)

    @property
    def slope(self) -> Interval | None:
        """Over the last OCTAVES of those beyond the transient. None when they are fewer than LEAST_OCTAVES."""
        lengths = self.lengths[self.settled :]
        if not lengths or lengths[-1] < lengths[0] * 2**LEAST_OCTAVES:
            return None
        return slope(lengths, self.errors[self.settled :])

    @property
    def fitted_from(self) -> int:
        """The first K of the slope."""
        return max(self.lengths[self.settled], self.lengths[-1] // 2**OCTAVES)

    def series(self, label: str) -> Series:
        seen = [interval(row) for row in self.errors]
        shown = [place for place, each in enumerate(seen) if each.mean < OFF_THE_PICTURE]
        return Series(
            label,
            [float(self.lengths[place]) for place in shown],
            [seen[place].mean for place in shown],
            [seen[place].low for place in shown],
            [seen[place].high for place in shown],
        )


def curve(name: str, where: str, size: Sizes) -> Curve:
    """One objective with the theorem's steps on one fleet, for all K."""
    shape, made = (PIPELINE, size.longest) if where == "pipeline" else (FLEET, size.fleet)
    lengths = [2**power for power in range(6, (size.network if name == "network" else made) + 1)]
    case = Case(objectives()[name], fleets.schedule(shape, shape.clusters * 2**made))
    whole = [shape.clusters * length for length in lengths]
    errors = table_of(case.train(whole, seeds=size.seeds, label=f"{name}, {where}"))
    promises = [case.promise(length) for length in whole]
    bounds = [promise.bound() for promise in promises]
    longest_time = max(promise.step * promise.sums.effective_updates for promise in promises)
    descent = descend(case.objective, case.problem.smoothness, longest_time)
    left = [transient(promise, descent) for promise in promises]
    return Curve(f"{name}, {where}", lengths, errors, bounds, left)


def controls(size: Sizes) -> list[Curve]:
    """What must fail, all on the quadratic but for old data, which is real."""
    lengths = [2**power for power in range(6, size.controls + 1)]
    pipeline = fleets.schedule(PIPELINE, 2 ** max(size.longest, size.controls))
    plain = Case(Quadratic(), pipeline)
    step = plain.promise(FIXED_AT).step
    seeds = size.seeds
    constant = table_of(plain.train(lengths, [step] * len(lengths), seeds=seeds, label="control: constant step"))
    features, signs = tumours()
    old = Case(Logistic(features, signs, old_draws=OLD_DRAWS), pipeline)
    fresh = Case(Logistic(features, signs), pipeline)
    steps = [fresh.promise(length).step for length in lengths]
    repeated = table_of(old.train(lengths, steps, seeds=seeds, label="control: old data"))
    return [
        Curve("constant step", lengths, constant),
        _growing_delay(size),
        Curve("old data", lengths, repeated),
        overlapping(size, naive=True),
    ]


def _growing_delay(size: Sizes) -> Curve:
    lengths = [2**power for power in range(6, size.delayed + 1)]
    errors = []
    for length in lengths:
        shape = fleets.Shape(stages=2, staleness=length // LATER)
        case = Case(Quadratic(), fleets.schedule(shape, length))
        step = case.promise(length).best_step
        errors.append(case.train([length], [step], seeds=size.seeds, label=f"control: delay {length // LATER}")[0])
    return Curve("growing delay", lengths, table_of(errors))


def overlapping(size: Sizes, *, naive: bool) -> Curve:
    """Two clusters whose rounds overlap; where gradients are computed."""
    lengths = [2**power for power in range(6, size.delayed + 1)]
    whole = [OVERLAPPING.clusters * length for length in lengths]
    case = Case(Quadratic(), fleets.schedule(OVERLAPPING, whole[-1]))
    merge: Merge = "naive" if naive else "progress"
    name = "naive merge" if naive else "progress, the same rounds"
    found = case.train(whole, seeds=size.seeds, merge=merge, label=name)
    return Curve(name, lengths, table_of(found, live=True))
