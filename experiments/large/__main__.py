"""`python -m experiments.large [--quick] [--only PART…] [--parameters N…] [--json]`: measure, judge, and write
RESULT.md."""

import sys
from collections.abc import Callable, Mapping
from functools import partial

from experiments.harness.command import parser_for, run_parts
from experiments.harness.report import Part
from experiments.large import checkpoint, planning, reading, seeded_weights, training

TITLE = "Models larger than a machine"
INTRO = (
    "What does it take to plan a model that nobody can hold? What does each process hold while such a model is "
    "trained, and what does that cost? What each part does is in docs/experiments/large.md."
)

PARTS: Mapping[str, Callable[..., Part]] = {
    "plan": planning.run,
    "checkpoint": checkpoint.run,
    "training": training.run,
    "reading": reading.run,
    "weights": seeded_weights.run,
}


def main(arguments: list[str] | None = None) -> int:
    """The exit code: see run_parts."""
    parser = parser_for("large", __doc__, list(PARTS))
    text = "the sizes of the models of `training`"
    parser.add_argument("--parameters", nargs="+", type=int, default=[], metavar="N", help=text)
    asked = parser.parse_args(arguments)
    parts = {name: partial(run, quick=asked.quick) for name, run in PARTS.items()}
    parts["training"] = partial(training.run, quick=asked.quick, parameters=asked.parameters)
    flags = ["--parameters", *map(str, asked.parameters)] if asked.parameters else []
    return run_parts("large", asked, parts, title=TITLE, intro=INTRO, flags=flags)


if __name__ == "__main__":
    sys.exit(main())
