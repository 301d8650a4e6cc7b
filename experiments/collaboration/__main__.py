"""`python -m experiments.collaboration [--quick] [--only PART…] [--hivemind PYTHON] [--wanlab PATH]`

Measure, judge, report.
"""

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from experiments.collaboration import (
    beside_hivemind,
    comes_and_goes,
    drawn_worlds,
    faults,
    fixed,
    helpers,
    joins,
    lab,
    lab_servers,
    many,
    short_steps,
    wires,
    worlds,
)
from experiments.harness.command import parser_for, run_parts
from experiments.harness.report import Part

TITLE = "Collaborative training"
INTRO = (
    "How fast do volunteers with unequal links average, and what comes of their large batches? What each part does is "
    "in docs/experiments/collaboration.md."
)

PARTS: Mapping[str, Callable[..., Part]] = {
    "worlds": worlds.measure,
    "many": many.measure,
    "fixed": fixed.measure,
    "comes_and_goes": comes_and_goes.measure,
    "wires": wires.measure,
    "short_steps": short_steps.measure,
    "drawn_worlds": drawn_worlds.measure,
    "joins": joins.measure,
    "helpers": helpers.measure,
    "faults": faults.measure,
    "hivemind": beside_hivemind.measure,
    "lab": lab.measure,
    "lab_servers": lab_servers.measure,
}


def main(arguments: list[str] | None = None) -> int:
    """The exit code: see run_parts."""
    parser = parser_for("collaboration", __doc__, list(PARTS))
    parser.add_argument("--hivemind", type=Path, metavar="PYTHON", help="measure hivemind beside: its environment's")
    parser.add_argument("--wanlab", metavar="PATH", help="the program that emulates links with namespaces")
    asked = parser.parse_args(arguments)
    parts = {name: partial(run, quick=asked.quick) for name, run in PARTS.items()}
    parts["hivemind"] = partial(parts["hivemind"], hivemind=asked.hivemind)
    for shaped in ("lab", "lab_servers"):
        parts[shaped] = partial(parts[shaped], wanlab=asked.wanlab)
    flags = [] if asked.hivemind is None else ["--hivemind", "PYTHON"]
    flags += [] if asked.wanlab is None else ["--wanlab", "PATH"]
    return run_parts("collaboration", asked, parts, title=TITLE, intro=INTRO, flags=flags)


if __name__ == "__main__":
    sys.exit(main())
