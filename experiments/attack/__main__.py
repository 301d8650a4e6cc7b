"""`python -m experiments.attack [--quick] [--only PART…] [--minutes M] [--json]`: measure, and write RESULT.md."""

import sys
from collections.abc import Callable
from functools import partial

from experiments.attack import encryption, fuzzed, liars, under_attack
from experiments.harness.command import parser_for, run_parts
from experiments.harness.report import Part

TITLE = "Strangers and liars"
INTRO = (
    "What do members who lie, strangers who attack and readers of traffic cost a run? docs/experiments/attack.md says "
    "what each part does."
)
PARTS = ("liars", "digits", "attack", "encryption", "fuzz")
MINUTES = 20.0


def main(arguments: list[str] | None = None) -> int:
    """The exit code: see run_parts."""
    parser = parser_for("attack", __doc__, PARTS)
    parser.add_argument("--minutes", type=float, default=MINUTES, help="of attack, with as many without (%(default)g)")
    asked = parser.parse_args(arguments)
    if not 0 < asked.minutes <= 24 * 60:
        parser.error(f"--minutes must be above 0 and at most a day, not {asked.minutes:g}")
    parts: dict[str, Callable[[], Part]] = {
        "liars": partial(liars.run, "liars", "characters", quick=asked.quick),
        "digits": partial(liars.run, "digits", "digits", quick=asked.quick),
        "attack": partial(under_attack.run, quick=asked.quick, minutes=asked.minutes),
        "encryption": partial(encryption.run, quick=asked.quick),
        "fuzz": partial(fuzzed.run, quick=asked.quick),
    }
    flags = [] if asked.minutes == MINUTES else ["--minutes", f"{asked.minutes:g}"]
    return run_parts("attack", asked, parts, title=TITLE, intro=INTRO, flags=flags)


if __name__ == "__main__":
    sys.exit(main())
