"""Four stages on uplinks of 5 Mbit/s, rehearsed: how much faster they train when less crosses their cuts.

In: the GPT of part `cuts`, with or without bottlenecks, and the one of rereading.py. Out: samples/s as planned, under
the virtual clock, and rehearsed with real processes on imitated links, beside what each form costs in learning. The
nodes are as fast as GPUs, so that links alone set the pace. A rehearsal goes on at a fraction of the speed: then this
machine computes in less time than the imitated links take, though in more than the imitated nodes would.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from torch.utils.data import Subset

from cluster_planner import Fleet, Link, Node, Plan, Stage, save_plan
from experiments.fidelity.achieved import Achieved, of_rehearsal
from experiments.fidelity.measure import rehearsal_of
from experiments.fidelity.plans import plan_by_hand
from experiments.harness.report import Cell, Claim, Panel, Part, Series, Table
from experiments.wire.cuts import MOST
from experiments.wire.rereading import made_by
from experiments.wire.tried_bottlenecks import BLOCKS as STAGES
from experiments.wire.tried_bottlenecks import CONTEXT, FEATURES, HEADS, WAYS, Narrow
from ravnest.job.config import Job, job_from_mapping
from ravnest.job.materials import capture_job, load_data
from ravnest.simulator import simulate

BASE, TASK = "int8", "characters"
REREADS = "7 of 64, int8, rereads"
FORMS: Mapping[str, Narrow] = {
    BASE: Narrow(wire="int8"),
    "int4": Narrow(wire="int4"),
    "a quarter, int8": Narrow(16, "int8"),
    "an eighth, int8": Narrow(8, "int8"),
    REREADS: WAYS[REREADS],
}
TIMES_FASTER, WITHIN = 8.0, 0.1
UNIT, NARROW_UNIT = ".perceptron.2", ".bottleneck.down"
"""What the last unit of a block is called, and of one with a bottleneck the last before the cut, at their end."""
MICRO_BATCH, UPDATE_EVERY, MAX_STALENESS, HELD_OUT = 16, 8, 2, 32
"""With a staleness of 1 at most, the round trip limits the narrowest cuts, and not the links."""
UP_BYTES_PER_S, DOWN_BYTES_PER_S, LATENCY_S = 5e6 / 8, 50e6 / 8, 0.010
FLOPS_PER_S, MEMORY_BYTES = 5e12, 16 * 10**9
SIMULATED_S = 120.0
RESULT = Path(__file__).parent / "result.json"


@dataclass(frozen=True)
class Extent:
    """How long each form is rehearsed, in seconds of this machine's clock or in micro-batches as planned, whichever is
    longer, and at what speed. Of few micro-batches those that fill the pipeline would be too large a part."""

    seconds: float = 75.0
    micro_batches: int = 300
    speed: float = 0.1
    round_updates: int = 2

    def seconds_of(self, plan: Plan) -> float:
        """How long this plan is rehearsed, in seconds of this machine's clock."""
        return max(self.seconds, self.micro_batches * MICRO_BATCH / plan.predicted.samples_per_s / self.speed)


@dataclass(frozen=True)
class Row:
    """One form: its plan, its samples/s under the virtual clock, and what came of its rehearsal."""

    form: str
    plan: Plan
    simulated: float
    rehearsed: Achieved

    @property
    def busiest(self) -> float:
        """The share of time in which the stage with most to compute does so, rehearsed."""
        return max(stage.busy for stage in self.rehearsed.stages.values())


def run(*, quick: bool) -> Part:
    """Plan, simulate and rehearse with each form, or with `quick` with two of them."""
    forms = [BASE, REREADS] if quick else list(FORMS)
    extent = Extent(seconds=12.0, micro_batches=0, speed=0.25, round_updates=1) if quick else Extent()
    rows = []
    with TemporaryDirectory(prefix="slow-links-") as name:
        for number, form in enumerate(forms):
            plan = plan_of(FORMS[form], Path(name) / "job.yaml", extent)
            path = Path(name) / f"form{number}.yaml"
            save_plan(plan, path)
            document = rehearsal_of(path, extent.seconds_of(plan), extent.speed)
            rows.append(Row(form, plan, simulate(plan, seconds=SIMULATED_S).samples_per_s, of_rehearsal(document)))
    return part_of(rows, losses_above(json.loads(RESULT.read_text(encoding="utf-8"))), extent)


def plan_of(form: Narrow, job_file: Path, extent: Extent) -> Plan:
    """A block to each stage; the window and the prediction are the planner's. `job_file` need not be there."""
    job = _job(form, extent)
    costs = capture_job(job, job_file, load_data(job, job_file)).costs
    ends = [
        i + 1
        for i, unit in enumerate(costs.units)
        if unit.name.endswith(NARROW_UNIT if form.width < FEATURES else UNIT)
    ]
    at = list(pairwise([0, *ends[: STAGES - 1], len(costs.units)]))
    stages = tuple(Stage(f"n{number}", units) for number, units in enumerate(at))
    return plan_by_hand(_fleet([stage.node for stage in stages]), [stages], costs, job, job_file)


def _fleet(names: Sequence[str]) -> Fleet:
    nodes = (
        Node(
            name=name,
            flops_per_s=FLOPS_PER_S,
            memory_bytes=MEMORY_BYTES,
            up_bytes_per_s=UP_BYTES_PER_S,
            down_bytes_per_s=DOWN_BYTES_PER_S,
        )
        for name in names
    )
    links = (Link(a, b, LATENCY_S, DOWN_BYTES_PER_S) for a, b in combinations(names, 2))
    return Fleet(tuple(nodes), tuple(links), ())


def losses_above(document: Mapping[str, Any]) -> dict[str, float]:
    """By form: how much higher than float32 it ends on characters, as other parts have measured it."""
    parts = [document["parts"].get(name) for name in ("cuts", "bottlenecks", "tried_bottlenecks")]
    tables = [part["tables"][0] for part in parts if part is not None]
    return {row[1]: row[4] for table in tables for row in table["rows"] if row[0] == TASK}


def part_of(rows: Sequence[Row], above: Mapping[str, float], extent: Extent) -> Part:
    """Judged. `above`: of each form, how much higher it ends than float32. The first row is what others are held to."""
    base = rows[0].rehearsed.samples_per_s
    times = {row.form: row.rehearsed.samples_per_s / base for row in rows}
    near = {row.form: row.rehearsed.samples_per_s / row.plan.predicted.samples_per_s - 1 for row in rows}
    worst = max(near, key=lambda form: abs(near[form]))
    claims = [
        _fastest(
            "within 1%",
            f"the forms that end at most {MOST:.0%} above float32",
            {form: ratio for form, ratio in times.items() if form in above and above[form] <= MOST},
        ),
        _fastest("at any loss", "all forms, whatever is learned with them", times),
        Claim(
            "predicted",
            "samples/s of each form, rehearsed against predicted",
            f"within {WITHIN:.0%}",
            f"{near[worst]:+.1%} at worst ({worst})",
            abs(near[worst]) <= WITHIN,
        ),
    ]
    cells: list[list[Cell]] = [
        [
            row.form,
            FORMS[row.form].ratio,
            above.get(row.form),
            row.plan.predicted.bottleneck,
            row.plan.predicted.samples_per_s,
            row.simulated,
            row.rehearsed.samples_per_s,
            round(times[row.form], 2),
            f"{row.busiest:.1%}",
        ]
        for row in rows
    ]
    columns = ["form", "times fewer bytes than float32", "loss above float32", "limited by", "planned, samples/s"]
    columns += ["simulated", "rehearsed", f"times {BASE}", "busiest stage, share of time"]
    return Part(
        "slow_links",
        "Across cuts: samples/s at 5 Mbit/s",
        claims,
        [Table("One cluster of four stages, a GPT on characters", columns, cells)],
        [
            Panel(
                "Four stages at 5 Mbit/s",
                "times fewer bytes than float32",
                f"samples/s over {BASE}'s",
                [Series("rehearsed", [FORMS[form].ratio for form in times], list(times.values()))],
                log_x=True,
                log_y=True,
                target=TIMES_FASTER,
            )
        ],
        [
            f"GPT {STAGES}x{FEATURES}, windows of {CONTEXT}, micro-batches of {MICRO_BATCH}, {UPDATE_EVERY} an update, "
            f"staleness of {MAX_STALENESS} at most. Nodes of {FLOPS_PER_S / 1e12:g} TFLOP/s, "
            f"{8e-6 * UP_BYTES_PER_S:g} Mbit/s up and {8e-6 * DOWN_BYTES_PER_S:g} down, "
            f"{1e3 * LATENCY_S:g} ms one way; a block to each stage. Each form is rehearsed for {extent.seconds:g} s "
            f"or {extent.micro_batches} micro-batches, at {extent.speed:g} of the speed, and simulated for "
            f"{SIMULATED_S:g} virtual seconds. The last column has "
            "what this machine computes, which takes longer than the imitated nodes would. What a form costs in "
            "learning is from parts cuts, bottlenecks (600 updates) and tried_bottlenecks (3,000), as far as measured.",
        ],
    )


def _fastest(name: str, which: str, times: Mapping[str, float]) -> Claim:
    best = max(times, key=times.__getitem__)
    return Claim(
        name,
        f"4 stages at 5 Mbit/s, of {which}: samples/s of the fastest over {BASE}'s, rehearsed",
        f"at least {TIMES_FASTER:g} times",
        f"{best}: {times[best]:.2f} times",
        times[best] >= TIMES_FASTER,
    )


def text(of: str, context: int) -> SimpleNamespace:
    """The factory of a job's data: that of another factory with few samples held out, since those that are evaluated at
    a rehearsal's end cross the same links."""
    made = made_by(of, context=context)
    held_out = Subset(made.held_out, range(HELD_OUT))
    return SimpleNamespace(train=made.train, held_out=held_out, baselines=made.baselines)


def _job(form: Narrow, extent: Extent) -> Job:
    example = "experiments.wire.rereading" if form.rereads else "examples.home.model"
    sizes = {"vocab": 97, "layers": STAGES, "width": FEATURES, "heads": HEADS, "context": CONTEXT}
    model: dict[str, object] = {"factory": f"{example}:gpt", "args": sizes}
    if form.width < FEATURES:
        narrow = {"features": FEATURES, "width": form.width}
        model["bottlenecks"] = [{"after": f"blocks.{number}", **narrow} for number in range(STAGES - 1)]
    data = "experiments.wire.rereading:text" if form.rereads else "examples.home.data:pydoc_text"
    return job_from_mapping(
        {
            "model": model,
            "data": {"factory": "experiments.wire.slow_links:text", "args": {"of": data, "context": CONTEXT}},
            "loss": "cross_entropy",
            "micro_batch": MICRO_BATCH,
            "update_every": UPDATE_EVERY,
            "max_staleness": MAX_STALENESS,
            "optimizer": {"name": "adamw", "lr": 2e-3},
            "wire": {"activations": form.wire, "gradients": form.wire},
            "average_every": extent.round_updates * UPDATE_EVERY * MICRO_BATCH,
            "evaluate_every": 10**9,
            "stop": {"samples": 10**9},
        }
    )
