"""`python -m experiments.gpu [--quick] [--json]`: measure, judge, and write RESULT.md. It needs a CUDA device; --quick
takes the processor where there is none."""

import sys
from functools import partial

from experiments.gpu import one_stage
from experiments.harness.command import parser_for, run_parts

TITLE = "Training on a GPU"
INTRO = (
    "`ravnest profile`, `ravnest plan` and `ravnest run` on one GPU, beside a plain loop of torch on it. What is "
    "measured is told in docs/experiments/gpu.md."
)


def main(arguments: list[str] | None = None) -> int:
    """The exit code: see run_parts."""
    asked = parser_for("gpu", __doc__, ["one_stage"]).parse_args(arguments)
    return run_parts("gpu", asked, {"one_stage": partial(one_stage.run, quick=asked.quick)}, title=TITLE, intro=INTRO)


if __name__ == "__main__":
    sys.exit(main())
