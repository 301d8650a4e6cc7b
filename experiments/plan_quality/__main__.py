"""`python -m experiments.plan_quality`: every part, or those that are asked for."""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from experiments.harness.command import parser_for, run_parts
from experiments.harness.report import ROOT, Cell, Part, Report
from experiments.plan_quality import learning_costs, neighbours, never_worse, parts, public_worlds, ranking, rehearsed

PARTS = [
    "brute_force",
    "brute_force_hard",
    "never_worse",
    "baselines",
    "scaling",
    "worlds_1.3B",
    "worlds_7B",
    "ranking",
    "rehearsed",
    "neighbours",
    "costs",
]

INTRO = (
    "How good are the planner's plans, and how long does it take? `brute_force…`, `never_worse`, `baselines`, "
    "`scaling` and `worlds_…` judge by the planner's own prediction and objective; how true these are, `rehearsed` and "
    "`neighbours` tell. `costs` measures what the objective's constants stand for."
)


def main(arguments: list[str] | None = None) -> int:
    """The exit code: see run_parts."""
    parser = parser_for("plan_quality", __doc__, PARTS)
    parser.add_argument("--regions", type=Path, help="a file such as world_regions.yaml (default: a made-up world)")
    parser.add_argument(
        "--worlds",
        nargs="+",
        default=[],
        metavar="WORLD[:SAMPLES]",
        help="of worlds_… only these cases, such as worldwide:488; the others keep their rows (default: all 16)",
    )
    parser.add_argument(
        "--climb-minutes",
        type=float,
        default=public_worlds.CLIMB_MINUTES,
        help="of worlds_…: processor time of hill climbing from each plan (default: %(default)g)",
    )
    parser.add_argument(
        "--fleets",
        nargs="+",
        type=int,
        choices=range(never_worse.FLEETS),
        default=[],
        metavar="SEED",
        help=f"of never_worse only these fleets; the others keep their rows (default: all {never_worse.FLEETS})",
    )
    asked = parser.parse_args(arguments)
    try:
        public_worlds.cases_of(asked.worlds)
    except ValueError as error:
        parser.error(f"--worlds: {error}")
    if not 0 < asked.climb_minutes <= 60:
        parser.error(f"--climb-minutes: expected more than 0 and at most 60, not {asked.climb_minutes:g}")
    folder = asked.out or ROOT / "experiments" / "plan_quality"

    def fleets() -> Part:
        only = asked.fleets and not asked.quick
        earlier = partial(_measured_before, folder, "never_worse", never_worse.COLUMNS) if only else list
        return never_worse.measure(quick=asked.quick, asked=asked.fleets, earlier=earlier)

    def worlds(model: str) -> Part:
        before = partial(_measured_before, folder, f"worlds_{model}", public_worlds.COLUMNS)
        earlier = list if asked.quick else before
        given = {"asked": asked.worlds, "climb_minutes": asked.climb_minutes, "earlier": earlier}
        return public_worlds.measure(model, quick=asked.quick, **given)

    known = {
        "brute_force": partial(parts.brute_force, quick=asked.quick),
        "brute_force_hard": partial(parts.hard_brute_force, quick=asked.quick),
        "never_worse": fleets,
        "baselines": partial(parts.baselines, asked.regions, quick=asked.quick),
        "scaling": partial(parts.scaling, asked.regions, quick=asked.quick),
        "worlds_1.3B": partial(worlds, "1.3B"),
        "worlds_7B": partial(worlds, "7B"),
        "ranking": partial(ranking.measure, quick=asked.quick),
        "rehearsed": partial(rehearsed.measure, quick=asked.quick),
        "neighbours": partial(neighbours.measure, quick=asked.quick),
        "costs": partial(learning_costs.measure, quick=asked.quick),
    }
    flags = [] if asked.regions is None else ["--regions", str(asked.regions)]
    flags += ["--worlds", *asked.worlds] if asked.worlds else []
    flags += ["--fleets", *map(str, asked.fleets)] if asked.fleets else []
    flags += (
        ["--climb-minutes", f"{asked.climb_minutes:g}"] if asked.climb_minutes != public_worlds.CLIMB_MINUTES else []
    )
    return run_parts("plan_quality", asked, known, title="Plan quality", intro=INTRO, flags=flags)


def _measured_before(folder: Path, part: str, columns: Sequence[str]) -> list[list[Cell]]:
    """Return the rows that an earlier run left of a part, if they have today's columns."""
    stored = Report(folder, "Plan quality", INTRO).document["parts"].get(part)
    if stored is None or tuple(stored["tables"][0]["columns"]) != tuple(columns):
        return []
    rows: list[list[Cell]] = stored["tables"][0]["rows"]
    return rows


if __name__ == "__main__":
    sys.exit(main())
