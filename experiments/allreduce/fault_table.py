"""Faults: what became of every seeded scenario that experiments/allreduce/faults.py runs, by kind."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.allreduce import faults
from experiments.allreduce.fault_plan import WAYS
from experiments.allreduce.options import Options
from experiments.harness.report import Cell, Claim, Part, Table, spread

LEAST_SCENARIOS = 200
COLUMNS = ("fault", "where", "runs", "way", "outcome", "s lost", "virtual s lost")


def run(options: Options) -> Part:
    """Run, and judge."""
    found = faults.scenarios(options.quick, options.seed)
    kinds = {one["fault"] for one in found}
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
                f"{len(found)} of {len(kinds)} kinds",
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
        tables=[Table("Fault, outcome, seconds lost", COLUMNS, rows_of(found))],
        notes=[
            "Processes wait less long here than by default (Patience): 1.5 s of silence and 1.2 s of a connection that "
            "carries nothing, instead of 10 s and 15 s. Seconds lost are those of the run with the fault less those "
            "of the same run without; noise of the machine may make them negative. Virtual seconds are of the "
            "emulated links and fixed delays, and say nothing about a machine."
        ],
    )


def rows_of(found: Sequence[Mapping[str, Any]]) -> list[list[Cell]]:
    """A row for each kind of fault and each place where it ran."""
    alike: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for one in found:
        alike[one["fault"], one["where"]].append(one)
    rows: list[list[Cell]] = []
    for (fault, where), ones in alike.items():
        outcomes, ways = (Counter(str(one[key]) for one in ones) for key in ("outcome", "way"))
        words = " / ".join(f"{count} × {outcome}" for outcome, count in outcomes.most_common())
        way = ", ".join(f"{ways[way]} {way}" for way in WAYS if ways[way])
        lost = spread([float(one["seconds_lost"]) for one in ones])
        seconds: list[Cell] = [lost, None] if where == faults.PROCESSES else [None, lost]
        rows.append([fault, where, len(ones), way, words, *seconds])
    return rows
