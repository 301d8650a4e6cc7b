"""How long planning takes, and how much memory, for Llamas of 1 to 405 billion parameters.

Each plan is made in a process of its own. `none` makes no weights at all; `sampled` tries two of the equal blocks with
values; `full` tries the whole model. At the smallest size a plan is made with all weights in memory, too: its model is
exported whole, on the CPU. Without weights the model is captured on the meta device, and its graph written down from
those of two and three of its blocks. Both have to come to the same costs of units, cuts and plan.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.harness.report import ROOT, Cell, Claim, Panel, Part, Series, Table
from ravnest.splitting.unrolling import LEAST_BLOCKS

BASE_BYTES = 1.5 * 2**30
VALUES = "real weights"
"""How the plan is called that is made with all weights in memory, beside the extents of the check."""
DEADLINE_S = 1800.0


@dataclass(frozen=True)
class Model:
    """A Llama, and the equal nodes that it is planned for. `most_s`: the seconds that planning may take."""

    name: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    vocabulary: int
    nodes: int
    memory_gb: float
    most_s: float | None = None

    @property
    def config(self) -> dict[str, Any]:
        """As job.yaml has it under `model.huggingface`."""
        return {
            "model_type": "llama",
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": min(8, self.heads),
            "max_position_embeddings": 8192,
            "tie_word_embeddings": False,
        }


SMALL = Model("0.1 B", LEAST_BLOCKS, 512, 1376, 8, 32_000, 4, 4.0)
MODELS = (
    SMALL,
    Model("1 B", 16, 2048, 8192, 32, 128_256, 12, 16.0),
    Model("8 B", 32, 4096, 14_336, 32, 128_256, 24, 24.0, 90.0),
    Model("70 B", 80, 8192, 28_672, 64, 128_256, 80, 64.0, 180.0),
    Model("405 B", 126, 16_384, 53_248, 128, 128_256, 128, 192.0),
)
QUICK = (Model("tiny", LEAST_BLOCKS, 32, 64, 4, 500, 2, 2.0),)


@dataclass(frozen=True)
class Row:
    """What one plan took. `refused`: why there is none."""

    model: Model
    check: str
    found: Mapping[str, Any]

    @property
    def refused(self) -> str:
        return str(self.found.get("refused", ""))

    @property
    def bound_bytes(self) -> float:
        return BASE_BYTES + 2 * float(self.found["largest_unit_bytes"])


def run(*, quick: bool) -> Part:
    """Plan each model as far as it goes on this machine."""
    rows = []
    for model in QUICK if quick else MODELS:
        checks = (VALUES, "full", "sampled", "none") if model in (SMALL, *QUICK) else ("sampled", "none")
        rows += [Row(model, check, measured(model, check)) for check in checks]
    return part_of(rows)


def measured(model: Model, check: str) -> Mapping[str, Any]:
    """One plan in a process of its own. Raises RuntimeError where the process fails."""
    asked = {"config": model.config, "nodes": model.nodes, "memory_gb": model.memory_gb}
    asked |= {"check": "none", "values": True} if check == VALUES else {"check": check}
    command = [sys.executable, "-m", "experiments.large.one_plan"]
    try:
        ended = subprocess.run(
            command, input=json.dumps(asked), capture_output=True, text=True, cwd=ROOT, timeout=DEADLINE_S
        )
    except subprocess.TimeoutExpired:
        return {"refused": f"took more than {DEADLINE_S:.0f} s"}
    if ended.returncode < 0:
        return {"refused": f"the process was killed by signal {-ended.returncode} (is memory short?)"}
    if ended.returncode:
        raise RuntimeError(f"{model.name}, {check}: {ended.stderr[-2000:]}")
    found: Mapping[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    print(f"{model.name}, {check}: {found}", file=sys.stderr, flush=True)
    return found


def part_of(rows: Sequence[Row]) -> Part:
    """The part of the report: pure."""
    made = [row for row in rows if not row.refused]
    return Part(
        name="plan",
        title="Planning",
        claims=claims_of(rows),
        tables=[
            Table(
                "One plan each",
                ("model", "parameters", "nodes", "check", "s", "CPU s", "peak MiB", "bound MiB", "units", "stages"),
                [_cells(row) for row in rows],
            )
        ],
        panels=[
            Panel(
                "Peak memory of planning without a check",
                "parameters",
                "MiB",
                [_series("peak", made, "peak"), _series("bound", made, "bound")],
                log_x=True,
                log_y=True,
            )
        ]
        if any(row.check == "none" for row in made)
        else [],
        notes=[
            "Seconds are from the start of `ravnest.plan` to the written plan.yaml, imports of transformers and torch "
            "included; CPU seconds are those of the same process on all its cores. One sample of 64 tokens a "
            "micro-batch. The bound is 1.5 GiB and twice the bytes of the largest unit. `sampled` adds a process that "
            "tries each unit as a stage; its memory is not in the peak. `real weights`: all of them were in memory; "
            "the model was exported whole on the CPU, with `--check none`.",
            *(f"{row.model.name}, {row.check}: {row.refused}" for row in rows if row.refused),
        ],
    )


def claims_of(rows: Sequence[Row]) -> list[Claim]:
    """What the rows bear out."""
    claims = [_same_plan(rows)]
    for row in rows:
        if row.check in ("full", VALUES):
            continue
        what = f"{row.model.name}, --check {row.check}"
        if row.refused:
            claims.append(Claim(what, "a plan is made", "made", "refused (see the notes)", None))
            continue
        if row.model.most_s is not None:
            held = row.found["seconds"] <= row.model.most_s
            measured_s = f"{row.found['seconds']:.0f} s ({row.found['cpu_s']:.0f} s of CPU)"
            claims.append(Claim(f"{what}: time", "planning takes", f"≤ {row.model.most_s:.0f} s", measured_s, held))
        peak, bound = row.found["peak_bytes"] / 2**20, row.bound_bytes / 2**20
        text = "the planning process holds at most 1.5 GiB + twice the largest unit"
        claims.append(Claim(f"{what}: memory", text, f"≤ {bound:.0f} MiB", f"{peak:.0f} MiB", peak <= bound))
    return claims


def _same_plan(rows: Sequence[Row]) -> Claim:
    """Whether the captures with and without weights in memory come to the same, part by part."""
    text = f"{rows[0].model.name}: captured without weights, it has the costs, cuts and plan that it has with them"
    small = {row.check: row.found for row in rows if row.model is rows[0].model and not row.refused}
    real, others = small.pop(VALUES, None), small
    if real is None or "none" not in others:
        return Claim("same plan", text, "equal", "not both were made", None)
    if not real["with_values"] or any(found["with_values"] for found in others.values()):
        return Claim("same plan", text, "equal", "all were captured in the same way", None)
    digests: Mapping[str, str] = real["digests"]
    other = [name for name, one in digests.items() if any(found["digests"][name] != one for found in others.values())]
    measured = f"other {', '.join(other)}" if other else f"equal {', '.join(digests)}: {', '.join((VALUES, *others))}"
    return Claim("same plan", text, "equal", measured, not other)


def _cells(row: Row) -> list[Cell]:
    found = row.found
    peak = round(found["peak_bytes"] / 2**20) if "peak_bytes" in found else None
    head: list[Cell] = [row.model.name]
    if row.refused:
        return [*head, None, row.model.nodes, row.check, None, None, peak, None, None, None]
    return [
        *head,
        found["parameter_bytes"] // 4,
        row.model.nodes,
        row.check,
        round(found["seconds"], 1),
        round(found["cpu_s"], 1),
        peak,
        round(row.bound_bytes / 2**20),
        found["units"],
        found["stages"],
    ]


def _series(label: str, rows: Sequence[Row], what: str) -> Series:
    shown = [row for row in rows if row.check == "none"]
    values = [row.found["peak_bytes"] if what == "peak" else row.bound_bytes for row in shown]
    return Series(label, [row.found["parameter_bytes"] / 4 for row in shown], [value / 2**20 for value in values])
