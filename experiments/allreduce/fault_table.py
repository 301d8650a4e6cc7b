"""Faults: what became of every seeded scenario that experiments/allreduce/faults.py runs, by kind."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from experiments.allreduce import faults
from experiments.allreduce.fault_plan import WAYS
from experiments.allreduce.options import Options
from experiments.report import Cell, Claim, Part, Table, spread

LEAST_SCENARIOS = 200


def run(options: Options) -> Part:
    """Run, and judge."""
    found = faults.scenarios(options.quick, options.seed)
    by_fault: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for one in found:
        by_fault[one["fault"]].append(one)
    rows: list[list[Cell]] = []
    for fault, ones in by_fault.items():
        outcomes = Counter(str(one["outcome"]) for one in ones)
        words = "; ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
        ways = Counter(str(one["way"]) for one in ones)
        way = ", ".join(f"{ways[way]} {way}" for way in WAYS if ways[way])
        rows.append([fault, len(ones), way, words, spread([float(one["seconds_lost"]) for one in ones])])
    bad = {word: [f"{one['fault']} (seed {one['seed']})" for one in found if one[word]] for word in ("hung", "wrong")}
    enough = len(found) >= LEAST_SCENARIOS
    return Part(
        name="faults",
        title="Faults",
        claims=[
            Claim(
                "scenarios",
                "seeded scenarios that were run",
                f">= {LEAST_SCENARIOS}",
                f"{len(found)} of {len(by_fault)} kinds",
                None if options.quick and not enough else enough,
            ),
            *(
                Claim(
                    word,
                    f"scenarios that {word if word == 'hung' else 'ended wrong'}",
                    "none",
                    f"{len(ones)} of {len(found)}{': ' if ones else ''}{'; '.join(ones[:5])}",
                    not ones,
                )
                for word, ones in bad.items()
            ),
        ],
        tables=[Table("Fault, outcome, seconds lost", ["fault", "runs", "way", "outcome", "s lost"], rows)],
    )
