"""`python -m experiments.experts [--quick] [--only PART…] [--hivemind PYTHON]`: measure, judge, and write RESULT.md."""

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from experiments.experts import beam, hosting, learning, many, table
from experiments.harness.command import parser_for, run_parts
from experiments.harness.report import Part

TITLE = "Experts behind a hash table"
INTRO = (
    "How long does it take to find a key among a thousand nodes, is everything found, what does the sudden death of a "
    "tenth of the nodes cost, and how do searches grow with the table? Are thousands of experts found? How much delay "
    "do many requests in flight hide, what does hosting cost, and is as much learned when requests fail? "
    "docs/experiments.md says what each part does."
)

PARTS: Mapping[str, Callable[..., Part]] = {
    "table": table.run,
    "beam": beam.run,
    "many": many.run,
    "delay": hosting.run_delay,
    "hosting": hosting.run_hosting,
    "learning-64": partial(learning.run, 8),
    "learning-256": partial(learning.run, 16),
}


def main(arguments: list[str] | None = None) -> int:
    """The exit code: see run_parts."""
    parser = parser_for("experts", __doc__, list(PARTS))
    parser.add_argument("--hivemind", type=Path, metavar="PYTHON", help="measure hivemind beside: its environment's")
    asked = parser.parse_args(arguments)
    parts = {name: partial(run, quick=asked.quick) for name, run in PARTS.items()}
    parts["table"] = partial(table.run, quick=asked.quick, hivemind=asked.hivemind)
    flags = [] if asked.hivemind is None else ["--hivemind", "PYTHON"]
    return run_parts("experts", asked, parts, title=TITLE, intro=INTRO, flags=flags)


if __name__ == "__main__":
    sys.exit(main())
