"""Tries the families of a part. Each stands in a table with its verdict."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace

import torch

from experiments.families.trial import (
    CLUSTERS,
    EXACT_UPDATES,
    MICRO_BATCH,
    ROUND_UPDATES,
    SEEDS,
    UPDATE_EVERY,
    UPDATE_SAMPLES,
    Family,
    Outcome,
    tried,
)
from experiments.harness.report import Cell, Claim, Panel, Part, Series, Table

SAME_LOSS = 1e-4
"""By so much two computations of one held-out loss may differ, of 1 or of the loss where that is larger."""
SAME_WEIGHTS = 1e-3
"""By so much a weight may differ from the plain loops', of the largest change of a weight."""
SPREADS, OF_THE_FALL = 2.0, 0.05
"""So many standard deviations of the plain loops' losses a run may end above their mean, or so much of how far they
have fallen, where that is more: loops whose seeds make no difference may still be an update ahead."""
LEAST_FALL = 0.5
"""The part of the plain loops' fall that a run has to reach however far their losses are apart."""
QUICK_UPDATES = 8
_SHOWN = 160

Tried = Sequence[tuple[Family, Outcome]]


def run(name: str, title: str, families: Sequence[Family], quick: Sequence[str], *, is_quick: bool) -> Part:
    """Try these families, or with `is_quick` those of them that `quick` names."""
    chosen = [replace(family, updates=QUICK_UPDATES) for family in families if family.name in quick]
    chosen = chosen if is_quick else list(families)
    torch.set_num_threads(1)  # these models are too small for more
    found = []
    for family in chosen:
        outcome = tried(family)
        print(f"  {family.name}: {verdict_on(family, outcome)}, {outcome.seconds:.0f} s", file=sys.stderr, flush=True)
        found.append((family, outcome))
    return part_of(name, title, found)


def part_of(name: str, title: str, found: Tried) -> Part:
    """What is claimed of these outcomes, and their table."""
    trained = [(family, outcome) for family, outcome in found if not outcome.refused and not outcome.failed]
    others = [family.name for family, outcome in found if outcome.refused and not family.refused]
    refused = sum(bool(outcome.refused) for _, outcome in found)
    counted = f"{len(found)} families, of which {len(trained)} were trained and {refused} refused"
    return Part(
        name,
        title,
        [
            _claim("reported", "weights load strictly, and plain PyTorch finds the reported loss", found, is_reported),
            _claim("exact", "a synchronous run with SGD equals plain loops", found, is_exact),
            _claim("refused", "what cannot be trained as it is meant is refused, and says why", found, is_refused),
            _claim("learnt", "a run ends no higher than plain loops with as many samples an update", found, has_learnt),
        ],
        [
            Table(
                f"{counted}; held-out losses",
                (
                    *("family", "units", "stages", "before", "reported", "recomputed", "plain loops", "spread"),
                    *("learnt", "error of weights", "verdict"),
                ),
                [row_of(family, outcome) for family, outcome in found],
            )
        ],
        [
            Panel(
                title,
                "held-out loss of plain loops, mean",
                "of the run",
                [Series("families", [statistics.fmean(o.plain) for _, o in trained], [o.reported for _, o in trained])],
                diagonal=True,
            )
        ]
        if trained
        else [],
        [
            f"{CLUSTERS} clusters of up to two stages. An update of a cluster has {UPDATE_EVERY} micro-batches of "
            f"{MICRO_BATCH} samples; rounds are {ROUND_UPDATES} updates of each cluster apart. *Plain loops*: AdamW, "
            f"as many updates, with batches of {UPDATE_SAMPLES} samples, as many as both clusters take for an update; "
            f"the mean over {len(SEEDS)} seeds, and the standard deviation among them (*spread*). The run has their "
            f"rate times √{CLUSTERS}, as docs/training.md says. *Learnt*: how far the run's loss has fallen, over how "
            f"far theirs has. *Error of weights*: after {EXACT_UPDATES} synchronous updates with SGD of each cluster, "
            "the largest difference of a weight from the mean of two plain loops, over the largest change of a weight; "
            "none is given where the forward draws random numbers.",
            *([f"Refused, although it might be trained: {', '.join(others)}."] if others else []),
            *warnings_of(found),
        ],
    )


def _claim(name: str, statement: str, found: Tried, holds: object) -> Claim:
    assert callable(holds)
    verdicts = [(family.name, holds(family, outcome)) for family, outcome in found]
    counted = [(family, verdict) for family, verdict in verdicts if verdict is not None]
    wrong = [family for family, verdict in counted if not verdict]
    target = {
        "reported": f"within {SAME_LOSS:g}",
        "exact": f"within {SAME_WEIGHTS:g} of the largest change of a weight",
        "refused": "each of those that have to be",
        "learnt": f"within {SPREADS:g} spreads of theirs, or {OF_THE_FALL:.0%} of their fall; each family",
    }[name]
    said = f"{len(counted) - len(wrong)} of {len(counted)}" + (f"; not {', '.join(wrong)}" if wrong else "")
    return Claim(name, statement, target, said if counted else "none here", not wrong if counted else None)


def is_reported(_: Family, outcome: Outcome) -> bool | None:
    """None where nothing was trained. A family that ended with an error of another kind is not."""
    if outcome.refused:
        return None
    return math.isclose(outcome.reported, outcome.recomputed, rel_tol=SAME_LOSS, abs_tol=SAME_LOSS)


def is_exact(_: Family, outcome: Outcome) -> bool | None:
    """None where there is no exact comparison."""
    if outcome.failed:
        return False
    return None if outcome.exact is None else outcome.exact <= SAME_WEIGHTS


def is_refused(family: Family, outcome: Outcome) -> bool | None:
    """None where the family need not be refused."""
    return family.refused in outcome.refused and bool(outcome.refused) if family.refused else None


def learnt(outcome: Outcome) -> float:
    """How far the run's loss has fallen, over how far the plain loops' has."""
    return (outcome.initial - outcome.reported) / (outcome.initial - statistics.fmean(outcome.plain))


def has_learnt(_: Family, outcome: Outcome) -> bool | None:
    """None where nothing was trained."""
    if outcome.refused:
        return None
    if outcome.failed:
        return False
    mean, spread = statistics.fmean(outcome.plain), statistics.stdev(outcome.plain)
    allowed = max(SPREADS * spread, OF_THE_FALL * (outcome.initial - mean))
    return outcome.reported <= mean + allowed and learnt(outcome) >= LEAST_FALL


def verdict_on(family: Family, outcome: Outcome) -> str:
    """In words."""
    if outcome.refused:
        return f"refused: {outcome.refused[:_SHOWN]}"
    if outcome.failed:
        return f"**failed**: {outcome.failed[:_SHOWN]}"
    checks = {"reported": is_reported, "exact": is_exact, "learnt": has_learnt}
    wrong = [name for name, holds in checks.items() if holds(family, outcome) is False]
    wrong += ["not refused"] if family.refused else []
    return f"not {', '.join(wrong)}" if wrong else "equal"


def row_of(family: Family, outcome: Outcome) -> list[Cell]:
    """A row of the table."""
    if outcome.refused or outcome.failed:
        return [family.name, *[None] * 9, verdict_on(family, outcome)]
    return [
        *(family.name, outcome.units, "+".join(map(str, outcome.stages)), outcome.initial, outcome.reported),
        *(outcome.recomputed, statistics.fmean(outcome.plain), statistics.stdev(outcome.plain), learnt(outcome)),
        *(outcome.exact, verdict_on(family, outcome)),
    ]


def warnings_of(found: Tried) -> list[str]:
    """What planning warned of, by family."""
    return [f"{family.name}: {' '.join(said.split())}" for family, outcome in found for said in outcome.warnings]
