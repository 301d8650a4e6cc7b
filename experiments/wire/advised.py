"""The bottlenecks that a plan advises: what they cost in learning, and what `int4` adds to that.

In: the GPT of part `bottlenecks`, with bottlenecks as a job has them, all on one subspace. Out: held-out losses beside
those without, with the same seeds. A plan advises a quarter of the features, as `int4`
(ravnest/planning/bottleneck_advice.py), whose words quote this part.
"""

import statistics
from collections.abc import Mapping

from experiments.harness.report import ROOT, Cell, Claim, Part, Table
from experiments.pipeline.tasks import Characters, Task
from experiments.wire.cuts import MOST, size_of
from experiments.wire.forms import EXACT, SEEDS, Higher, higher, losses_of
from experiments.wire.tried_bottlenecks import BLOCKS, CONTEXT, FEATURES, Narrow, loss_of
from ravnest.planning.bottleneck_advice import PART, SHORTEST

QUARTER, ADVISED = "a quarter", f"a quarter, {SHORTEST}"
WAYS: Mapping[str, Narrow] = {
    EXACT: Narrow(),
    QUARTER: Narrow(FEATURES // PART, alike=True),
    ADVISED: Narrow(FEATURES // PART, SHORTEST, alike=True),
}


def run(*, quick: bool) -> Part:
    """Train without bottlenecks, with them, and with them as int4."""
    size = size_of(quick=False)
    task, updates, seeds = size.tasks["characters"], size.updates["characters"], SEEDS
    if quick:
        task, updates, seeds = Characters(ROOT / "README.md", BLOCKS, FEATURES, CONTEXT, 4), 2, seeds[:2]

    def train(_: str, task: Task, way: str, seed: int) -> float:
        return loss_of(task, WAYS[way], seed, updates)

    losses = losses_of({"characters": task}, list(WAYS), train, seeds)["characters"]
    above = {way: higher(losses[way], losses[EXACT]) for way in WAYS}
    rows: list[list[Cell]] = [
        [way, WAYS[way].ratio, statistics.fmean(losses[way]), above[way].mean, above[way].half] for way in WAYS
    ]
    adds = higher(losses[ADVISED], losses[QUARTER])
    return Part(
        "advised",
        "The bottlenecks that plans advise",
        [
            Claim(
                "int4",
                f"a quarter of the features as {SHORTEST} ends at most {MOST:.1%} higher than as float32, on the mean",
                f"at most {MOST:.1%}",
                f"{_said(adds)}; above float32 without bottlenecks: {_said(above[ADVISED])}",
                adds.mean <= MOST,
            )
        ],
        [
            Table(
                "Held-out loss after the same samples; the means of paired seeds",
                ("way", "times fewer bytes", "loss", "above float32", "half of its 95 % interval"),
                rows,
            )
        ],
        notes=[
            f"{task.name}; {updates} updates; {len(seeds)} seeds; bottlenecks at three cuts, as in part bottlenecks, "
            "but all on one subspace, as those of a job are."
        ],
    )


def _said(above: Higher) -> str:
    return f"{100 * above.mean:+.2f} ± {100 * above.half:.2f} %"
