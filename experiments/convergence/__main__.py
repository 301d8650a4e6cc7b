"""`python -m experiments.convergence [--quick] [--only PART…] [--json]`: measure, judge, write RESULT.md."""

import sys
from collections.abc import Callable, Mapping
from functools import partial

from experiments.convergence import backward, blocks, program, rate, speedup, staleness, summary
from experiments.harness.command import parser_for, run_parts
from experiments.harness.report import ROOT, Part

TITLE = "Theory tested"
INTRO = (
    "Does training with stale gradients over clusters that average now and then converge as docs/theory.md says: at "
    "1/√K, below its bound, linearly faster with more clusters, until staleness passes a threshold? Every schedule "
    "of delays and rounds was made by the project's own stage, ring and round machines under the virtual clock, "
    "except where a part says so. docs/convergence-report.md is the same on one page."
)
PARTS: Mapping[str, Callable[..., Part]] = {
    "rate": rate.run,
    "speedup": speedup.run,
    "staleness": staleness.run,
    "blocks": blocks.run,
    "backward": backward.run,
    "program": program.run,
}


def main(arguments: list[str] | None = None) -> int:
    """The exit code: see run_parts."""
    asked = parser_for("convergence", __doc__, list(PARTS)).parse_args(arguments)
    parts = {name: partial(run, quick=asked.quick) for name, run in PARTS.items()}
    code = run_parts("convergence", asked, parts, title=TITLE, intro=INTRO)
    if asked.out is not None:
        folder, page = asked.out, asked.out / summary.PAGE
    elif asked.quick:
        folder = ROOT / "runs" / "experiments" / "convergence"
        page = folder / summary.PAGE
    else:
        folder, page = ROOT / "experiments" / "convergence", ROOT / "docs" / summary.PAGE
    if (folder / "result.json").exists():
        summary.write(folder, page)
    return code


if __name__ == "__main__":
    sys.exit(main())
