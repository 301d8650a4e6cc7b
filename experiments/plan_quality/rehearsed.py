"""Part `rehearsed`: fleets that the planner plans by its own search, and whose plans are then run for real on imitated
machines. Predicted against rehearsed step time. Decides how near is near enough, and what explains a miss.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from cluster_planner import Plan
from experiments.fidelity.judging import MOST_LATE, difference
from experiments.harness.report import Cell, Claim, Panel, Part, Series, Table
from experiments.plan_quality.home_plans import plan_of, shortest_stage_s
from experiments.plan_quality.homes import SHAPES, homes
from experiments.plan_quality.rehearsing import SIMULATED_S, Made, rehearsed, simulated

SEED = 1
SECONDS, QUICK_SECONDS = 20.0, 10.0
"""Of training, fill included."""
WITHIN = 0.15
SIMULATED_WITHIN = 0.05


@dataclass(frozen=True)
class Row:
    """One fleet. `rehearsed`: why it failed, where it did."""

    name: str
    words: str
    plan: Plan
    simulated: Made
    rehearsed: Made | str

    @property
    def step_ratios(self) -> list[float]:
        """Predicted over rehearsed seconds per micro-batch, of each cluster."""
        if isinstance(self.rehearsed, str):
            return []
        predicted = [cluster.samples_per_s for cluster in self.plan.predicted.clusters]
        return [made / rate for rate, (made, _) in zip(predicted, self.rehearsed.clusters, strict=True)]

    @property
    def worst(self) -> float | None:
        """The ratio that is farthest from 1."""
        return max(self.step_ratios, key=lambda ratio: abs(ratio - 1), default=None)


def measure(*, quick: bool) -> Part:
    """Plan, simulate and rehearse, one after another."""
    seconds = QUICK_SECONDS if quick else SECONDS
    rows = []
    with TemporaryDirectory(prefix="plan-quality-") as name:
        for home in homes(SEED)[: 1 if quick else len(SHAPES)]:
            plan = plan_of(home)
            came = rehearsed(plan, Path(name) / f"{home.name}.yaml", seconds)
            rows.append(Row(home.name, home.words, plan, simulated(plan), came))
    return part(rows, seconds)


def part(rows: Sequence[Row], seconds: float) -> Part:
    """Judged. Pure."""
    return Part(
        name="rehearsed",
        title="Predicted against rehearsed, with the planner's own plans",
        claims=[_near(rows), _kept_up(rows)],
        tables=[_table(rows)],
        panels=[_panel(rows)],
        notes=[
            "Fleets of home machines from a seed (experiments/plan_quality/homes.py); the planner chooses groups, "
            f"order, cuts, windows and rings. Each plan is rehearsed for {seconds:.0f} s of training as `ravnest "
            "rehearse` does it: processors and links imitated. A step is one micro-batch of a cluster in the steady "
            "state; of a plan's clusters the one that is farthest off counts. Simulated: "
            f"{SIMULATED_S:.0f} virtual seconds.",
            *explanations(rows),
        ],
    )


def explanations(rows: Sequence[Row]) -> list[str]:
    """A line for each failure and each miss, from what the row itself has measured."""
    lines = []
    for row in rows:
        if isinstance(row.rehearsed, str):
            lines.append(f"{row.name}: failed: {row.rehearsed}")
        elif row.worst is not None and abs(row.worst - 1) > WITHIN:
            ratio = row.simulated.samples_per_s / row.rehearsed.samples_per_s
            if abs(ratio - 1) <= SIMULATED_WITHIN:
                whose = "the simulator agrees with the rehearsal, so it is the prediction that is off"
            else:
                whose = "the simulator differs, too, so it is the rehearsal that does not do what is imitated"
            seen = difference("simulated", row.simulated.achieved, "rehearsed", row.rehearsed.achieved)
            limit = row.plan.predicted.bottleneck
            lines.append(
                f"{row.name}: a step is predicted to take {row.worst:.3f} of what it took, limited by {limit}. "
                f"Simulated {ratio:.3f} of rehearsed samples/s: {whose}. {seen}"
            )
    return lines


def _near(rows: Sequence[Row]) -> Claim:
    worst = {row.name: ratio - 1 for row in rows if (ratio := row.worst) is not None}
    statement = "step time, predicted against rehearsed, in each plan"
    target = f"within {WITHIN:.0%}"
    if not worst:
        return Claim("predicted", statement, target, "no rehearsal came to anything", held=False)
    far = max(worst, key=lambda name: abs(worst[name]))
    near = sum(abs(each) <= WITHIN for each in worst.values())
    failed = len(rows) - len(worst)
    measured = f"{near} of {len(rows)}; {worst[far]:+.1%} at worst ({far})" + (f"; {failed} failed" if failed else "")
    return Claim("predicted", statement, target, measured, near == len(rows))


def _kept_up(rows: Sequence[Row]) -> Claim:
    late = {row.name: share for row in rows if (share := late_share(row.rehearsed)) is not None}
    statement = "this machine was late by no more than this share of any stage's imitated computing"
    target = f"<= {MOST_LATE:.0%}"
    if not late:
        return Claim("kept up", statement, target, "no rehearsal has told it", None)
    far = max(late, key=lambda name: late[name])
    held = sum(share <= MOST_LATE for share in late.values())
    return Claim(
        "kept up", statement, target, f"{held} of {len(late)}; {late[far]:.1%} at worst ({far})", held == len(late)
    )


def late_share(came: Made | str) -> float | None:
    """The largest of a stage's."""
    return None if isinstance(came, str) else came.achieved.most_late


def _table(rows: Sequence[Row]) -> Table:
    cells: list[list[Cell]] = []
    for row in rows:
        made = row.rehearsed if isinstance(row.rehearsed, Made) else None
        late = late_share(row.rehearsed)
        predicted = row.plan.predicted
        cells.append(
            [
                row.name,
                row.words,
                "+".join(str(len(cluster.stages)) for cluster in row.plan.clusters),
                predicted.bottleneck,
                predicted.samples_per_s,
                row.simulated.samples_per_s,
                None if made is None else made.samples_per_s,
                ", ".join(f"{ratio:.3f}" for ratio in row.step_ratios) or None,
                None if made is None else f"{row.simulated.samples_per_s / made.samples_per_s:.3f}",
                f"{shortest_stage_s(row.plan) * 1e3:.0f} ms",
                None if late is None else f"{late:.1%}",
            ]
        )
    columns = ["plan", "fleet", "stages", "limited by", "predicted", "simulated", "rehearsed"]
    columns += ["step time, predicted / rehearsed", "simulated / rehearsed", "shortest stage", "late"]
    return Table("Samples/s in the steady state, and step time of each cluster", columns, cells)


def _panel(rows: Sequence[Row]) -> Panel:
    points = sorted(
        (row.rehearsed.samples_per_s, row.plan.predicted.samples_per_s, row.simulated.samples_per_s)
        for row in rows
        if isinstance(row.rehearsed, Made)
    )
    x = [one for one, _, _ in points]
    series = [Series("predicted", x, [y for _, y, _ in points]), Series("simulated", x, [y for _, _, y in points])]
    return Panel("The planner's plans", "rehearsed, samples/s", "samples/s", series if points else [], diagonal=True)
