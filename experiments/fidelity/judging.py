"""What the three runs of each plan say: claims, tables, a picture, and for every miss what the row's own figures show.

Pure. Decides how near is near enough, and which of a row's measurements explain a difference.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from experiments.fidelity.achieved import Achieved
from experiments.harness.report import Cell, Claim, Panel, Part, Series, Table

SIMULATED_WITHIN, REAL_WITHIN, PREDICTED_WITHIN = 0.05, 0.10, 0.15
MOST_LATE = 0.02
_WORTH_NAMING = 0.01
SIMULATED, REHEARSED, REAL = "simulated", "rehearsed", "real"
Came = Achieved | str | None
"""What a run came to; why it failed; None: it was not part of this."""


@dataclass(frozen=True)
class Row:
    """One plan. Rates in samples/s."""

    name: str
    words: str
    predicted: float
    bottleneck: str
    simulated: Came
    rehearsed: Came
    real: Came

    def came(self, kind: str) -> Achieved | None:
        """Where it came to something."""
        found: Came = getattr(self, kind)
        return found if isinstance(found, Achieved) else None

    def rate(self, kind: str) -> float | None:
        """Samples/s; also of "predicted"."""
        if kind == "predicted":
            return self.predicted
        came = self.came(kind)
        return None if came is None else came.samples_per_s

    def ratio(self, kind: str, to: str) -> float | None:
        """Rate over rate."""
        a, b = self.rate(kind), self.rate(to)
        return None if a is None or not b else a / b


def part(rows: Sequence[Row], why_not_real: str, notes: Sequence[str]) -> Part:
    """The experiment's only part."""
    claims = [
        _near("simulated", SIMULATED, REHEARSED, SIMULATED_WITHIN, rows, ""),
        _near("rehearsed", REHEARSED, REAL, REAL_WITHIN, rows, why_not_real),
        _kept_up(rows),
        _near("predicted", "predicted", REAL, PREDICTED_WITHIN, rows, why_not_real),
    ]
    return Part(
        name="plans",
        title="Simulated, rehearsed, real",
        claims=claims,
        tables=[_rates(rows), _averaging(rows), _busy(rows)],
        panels=_panels(rows),
        notes=[*notes, *explanations(rows)],
    )


def explanations(rows: Sequence[Row]) -> list[str]:
    """A line for each failure and for each ratio beyond its bound, from what the row itself has measured."""
    lines = []
    for row in rows:
        cames = {kind: getattr(row, kind) for kind in (SIMULATED, REHEARSED, REAL)}
        lines += [f"{row.name}: {kind}: failed: {came}" for kind, came in cames.items() if isinstance(came, str)]
        for kind, to, within in ((SIMULATED, REHEARSED, SIMULATED_WITHIN), (REHEARSED, REAL, REAL_WITHIN)):
            ratio, a, b = row.ratio(kind, to), row.came(kind), row.came(to)
            if ratio is not None and a is not None and b is not None and abs(ratio - 1) > within:
                lines.append(f"{row.name}: {kind} {ratio:.3f} of {to}: {difference(kind, a, to, b)}")
    return lines


def difference(kind: str, a: Achieved, other: str, b: Achieved) -> str:
    """In which share of which stage's time two runs of a plan differ most, and who was late."""
    stages = [stage for stage in a.stages if stage in b.stages]
    said = []
    for name, came in ((kind, a), (other, b)):
        late = {stage: each.late_share for stage, each in came.stages.items() if each.late_share is not None}
        if late:
            latest = max(late, key=lambda stage: late[stage])
            said.append(f"{name}, {latest} was late by {late[latest]:.1%} of its computing")
    if stages:
        stage = max(stages, key=lambda each: max(a.stages[each].busy, b.stages[each].busy))
        mine, theirs = a.stages[stage], b.stages[stage]
        said.append(f"the busiest stage {stage} computed {mine.busy:.1%} ({kind}) and {theirs.busy:.1%} ({other})")
        causes = sorted({*mine.waiting, *theirs.waiting})
        changes = {cause: theirs.waiting.get(cause, 0.0) - mine.waiting.get(cause, 0.0) for cause in causes}
        worth = sorted((c for c in causes if abs(changes[c]) >= _WORTH_NAMING), key=lambda c: -abs(changes[c]))
        said += [f"waited for {c} {mine.waiting.get(c, 0.0):.1%} and {theirs.waiting.get(c, 0.0):.1%}" for c in worth]
    if a.averaging_s is not None and b.averaging_s is not None:
        said.append(f"a round took {a.averaging_s:.2f} s and {b.averaging_s:.2f} s")
    return "; ".join(said) or "neither has told anything of its stages"


def _near(name: str, kind: str, to: str, within: float, rows: Sequence[Row], why_not: str) -> Claim:
    statement = f"samples/s, {kind} against {to}, in each plan"
    target = f"within {within:.0%}"
    off = {row.name: ratio - 1 for row in rows if (ratio := row.ratio(kind, to)) is not None}
    if not off:
        return Claim(name, statement, target, why_not or "no plan has both", None)
    worst = max(off, key=lambda each: abs(off[each]))
    near = sum(abs(each) <= within for each in off.values())
    failed = len(rows) - len(off)
    measured = f"{near} of {len(off)}; {off[worst]:+.1%} at worst ({worst})" + (f"; {failed} failed" if failed else "")
    return Claim(name, statement, target, measured, near == len(rows))


def _kept_up(rows: Sequence[Row]) -> Claim:
    late = {
        row.name: came.most_late
        for row in rows
        if (came := row.came(REHEARSED)) is not None and came.most_late is not None
    }
    statement = "this machine was late by no more than this share of any stage's imitated computing, in each rehearsal"
    if not late:
        return Claim("kept up", statement, f"<= {MOST_LATE:.0%}", "no rehearsal has told it", None)
    worst = max(late, key=lambda each: late[each])
    held = sum(share <= MOST_LATE for share in late.values())
    measured = f"{held} of {len(late)}; {late[worst]:.1%} at worst ({worst})"
    return Claim("kept up", statement, f"<= {MOST_LATE:.0%}", measured, held == len(late))


def _rates(rows: Sequence[Row]) -> Table:
    def over(row: Row, kind: str, to: str) -> Cell:
        ratio = row.ratio(kind, to)
        return None if ratio is None else f"{ratio:.3f}"

    kinds = ("predicted", SIMULATED, REHEARSED, REAL)
    cells: list[list[Cell]] = [
        [
            row.name,
            row.words,
            row.bottleneck,
            *(row.rate(kind) for kind in kinds),
            over(row, SIMULATED, REHEARSED),
            over(row, REHEARSED, REAL),
            over(row, "predicted", REAL),
            _percent(came.most_late if (came := row.came(REHEARSED)) is not None else None),
            _percent(came.most_late if (came := row.came(REAL)) is not None else None),
        ]
        for row in rows
    ]
    ratios = ["simulated / rehearsed", "rehearsed / real", "predicted / real"]
    columns = ["plan", "site", "limited by", *kinds, *ratios, "late, rehearsed", "late, real"]
    return Table("Samples/s in the steady state", columns, cells)


def _averaging(rows: Sequence[Row]) -> Table:
    kinds = (SIMULATED, REHEARSED, REAL)
    cells: list[list[Cell]] = [
        [row.name, *((came.averaging_s if (came := row.came(kind)) is not None else None) for kind in kinds)]
        for row in rows
    ]
    return Table("A round of averaging, from its opening to its commit, s", ["plan", *kinds], cells)


def _busy(rows: Sequence[Row]) -> Table:
    kinds = (SIMULATED, REHEARSED, REAL)

    def words(came: Achieved | None) -> Cell:
        return None if came is None else ", ".join(f"{each.busy:.0%}" for each in came.stages.values())

    cells: list[list[Cell]] = [[row.name, *(words(row.came(kind)) for kind in kinds)] for row in rows]
    return Table("How busy each stage is, in the plan's order", ["plan", *kinds], cells)


def _percent(share: float | None) -> Cell:
    return None if share is None else f"{share:.1%}"


def _panels(rows: Sequence[Row]) -> list[Panel]:
    series = []
    for kind in (SIMULATED, REAL, "predicted"):
        points = sorted(
            (x, y) for row in rows if (x := row.rate(REHEARSED)) is not None and (y := row.rate(kind)) is not None
        )
        if points:
            series.append(Series(kind, [x for x, _ in points], [y for _, y in points]))
    title = "Each plan: simulated, real and predicted against rehearsed"
    return [Panel(title, "rehearsed, samples/s", "samples/s", series, log_x=True, log_y=True, diagonal=True)]
