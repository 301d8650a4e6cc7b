"""`python -m experiments.page [--quick] [--only PART…] [--json]`: measure, judge, and write RESULT.md."""

import sys
from collections.abc import Callable, Mapping
from functools import partial

from experiments.harness.command import parser_for, run_parts
from experiments.harness.report import Part
from experiments.page import cost, live, pictures

TITLE = "The page of a run"
INTRO = (
    "What does the page cost, of a run of 64 nodes and of one of 1,000? The run is generated: a process writes its "
    "metrics.jsonl as a run does, `ravnest watch` serves it, and a browser without a window looks at it. "
    "docs/page.md shows the pictures. And how soon does it show what happens?"
)

PARTS: Mapping[str, Callable[..., Part]] = {"cost": cost.run, "live": live.run, "pictures": pictures.run}


def main(arguments: list[str] | None = None) -> int:
    """The exit code: see run_parts."""
    asked = parser_for("page", __doc__, list(PARTS)).parse_args(arguments)
    parts = {name: partial(run, quick=asked.quick) for name, run in PARTS.items()}
    return run_parts("page", asked, parts, title=TITLE, intro=INTRO)


if __name__ == "__main__":
    sys.exit(main())
