"""`python -m experiments.plan_quality`: every part, or those that are asked for."""

import sys
from functools import partial
from pathlib import Path

from experiments.harness.command import parser_for, run_parts
from experiments.plan_quality import neighbours, parts, public_worlds, ranking, rehearsed

PARTS = [
    "brute_force",
    "brute_force_hard",
    "baselines",
    "scaling",
    "worlds_1.3B",
    "worlds_7B",
    "ranking",
    "rehearsed",
    "neighbours",
]

INTRO = (
    "How good are the planner's plans, and how long does it take? `brute_force…`, `baselines`, `scaling` and "
    "`worlds_…` judge by the planner's own prediction and objective; how true these are, `rehearsed` and `neighbours` "
    "tell."
)


def main(arguments: list[str] | None = None) -> int:
    """The exit code: see run_parts."""
    parser = parser_for("plan_quality", __doc__, PARTS)
    parser.add_argument("--regions", type=Path, help="a file such as world_regions.yaml (default: a made-up world)")
    asked = parser.parse_args(arguments)
    known = {
        "brute_force": partial(parts.brute_force, quick=asked.quick),
        "brute_force_hard": partial(parts.hard_brute_force, quick=asked.quick),
        "baselines": partial(parts.baselines, asked.regions, quick=asked.quick),
        "scaling": partial(parts.scaling, asked.regions, quick=asked.quick),
        "worlds_1.3B": partial(public_worlds.measure, "1.3B", quick=asked.quick),
        "worlds_7B": partial(public_worlds.measure, "7B", quick=asked.quick),
        "ranking": partial(ranking.measure, quick=asked.quick),
        "rehearsed": partial(rehearsed.measure, quick=asked.quick),
        "neighbours": partial(neighbours.measure, quick=asked.quick),
    }
    flags = [] if asked.regions is None else ["--regions", str(asked.regions)]
    return run_parts("plan_quality", asked, known, title="Plan quality", intro=INTRO, flags=flags)


if __name__ == "__main__":
    sys.exit(main())
