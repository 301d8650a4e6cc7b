"""`python -m experiments.wire [--quick] [--only PART…] [--json]`: measure, judge, and write RESULT.md."""

import sys
from collections.abc import Callable, Mapping
from functools import partial

from experiments.harness.command import parser_for, run_parts
from experiments.harness.report import Part
from experiments.wire import (
    advised,
    averaging,
    bottlenecks,
    cuts,
    entropy,
    slow_links,
    tried_bottlenecks,
    tried_cuts,
    tried_rounds,
)

TITLE = "Shorter forms on the wire"
INTRO = (
    "How much longer does learning take, or how much higher does it end, when activations and gradients cross cuts in "
    "fewer bytes, and when rounds average in fewer? docs/experiments/wire.md says what each part does."
)
PARTS: Mapping[str, Callable[..., Part]] = {
    "cuts": cuts.run,
    "bottlenecks": bottlenecks.run,
    "advised": advised.run,
    "slow_links": slow_links.run,
    "averaging": averaging.run,
    "entropy": entropy.run,
    "tried_cuts": tried_cuts.run,
    "tried_bottlenecks": tried_bottlenecks.run,
    "tried_rounds": tried_rounds.run,
}


def main(arguments: list[str] | None = None) -> int:
    """The exit code: see run_parts."""
    asked = parser_for("wire", __doc__, list(PARTS)).parse_args(arguments)
    parts = {name: partial(run, quick=asked.quick) for name, run in PARTS.items()}
    return run_parts("wire", asked, parts, title=TITLE, intro=INTRO)


if __name__ == "__main__":
    sys.exit(main())
