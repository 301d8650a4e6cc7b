"""`python -m experiments.pipeline [--quick] [--only PART…] [--json]`: measure, judge, and write RESULT.md."""

import sys
from collections.abc import Callable, Mapping
from functools import partial

from experiments.harness.command import parser_for, run_parts
from experiments.harness.report import Part
from experiments.pipeline import launching, one_process, overhead, paced, quality, soap

TITLE = "The asynchronous pipeline"
INTRO = (
    "Does the pipeline stay busy whatever the latency, does training with stale gradients reach the loss of "
    "synchronous training, and what does the runtime cost beside torch's own computing? Every baseline was measured "
    "in the same run as what it is compared to. docs/experiments.md says what each part does."
)


PARTS: Mapping[str, Callable[..., Part]] = {
    "paced": paced.run,
    "overhead": overhead.run,
    "one_process": one_process.run,
    "launching": launching.run,
    **{quality.part_of(name): partial(quality.run_staleness, name) for name in quality.OPTIMIZERS},
    "depth": quality.run_depth,
    "blocks": quality.run_blocks,
    "soap_steps": soap.run_steps,
    "soap_learning": soap.run_learning,
}


def main(arguments: list[str] | None = None) -> int:
    """The exit code: see run_parts."""
    asked = parser_for("pipeline", __doc__, list(PARTS)).parse_args(arguments)
    parts = {name: partial(run, quick=asked.quick) for name, run in PARTS.items()}
    return run_parts("pipeline", asked, parts, title=TITLE, intro=INTRO)


if __name__ == "__main__":
    sys.exit(main())
