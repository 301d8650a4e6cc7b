"""`python -m experiments.scale [--quick] [--only PART…] [--json]`: simulate, judge, and write RESULT.md."""

import sys
from collections.abc import Callable, Mapping
from functools import partial

from experiments.harness.command import parser_for, run_parts
from experiments.harness.report import Part
from experiments.scale import hierarchy, rings, sizes, speed, whole_fleet

TITLE = "Fleets of 10 to 10,000 nodes"
INTRO = (
    "What becomes of a run when its fleet grows, and how fast that can be simulated: the machines of a real run under "
    "the virtual clock (ravnest/simulator), on home links from a seed. docs/experiments.md says what each part does."
)

PARTS: Mapping[str, Callable[..., Part]] = {
    "speed": speed.run,
    "rings": rings.run,
    "hierarchy": hierarchy.run,
    "sizes": sizes.run,
    "whole_fleet": whole_fleet.run,
}


def main(arguments: list[str] | None = None) -> int:
    """The exit code: see run_parts."""
    asked = parser_for("scale", __doc__, list(PARTS)).parse_args(arguments)
    parts = {name: partial(run, quick=asked.quick) for name, run in PARTS.items()}
    return run_parts("scale", asked, parts, title=TITLE, intro=INTRO)


if __name__ == "__main__":
    sys.exit(main())
