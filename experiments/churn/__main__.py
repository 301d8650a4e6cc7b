"""`python -m experiments.churn [--quick] [--only PART…] [--json]`: measure, judge, and write RESULT.md."""

import sys
from collections.abc import Callable, Mapping
from functools import partial

from experiments.churn import (
    faults_a_minute,
    injected_faults,
    joins,
    notices,
    optimizer_states,
    rehearsed_faults,
    rehearsed_traces,
    traces,
    warm_spares,
)
from experiments.churn.faulted.judging import WANTED
from experiments.harness.command import parser_for, run_parts
from experiments.harness.report import Part

TITLE = "Machines that come and go"
INTRO = (
    "How much does a run make while its machines are switched off, taken back and added? What each part does is in "
    "docs/experiments/churn.md."
)

PARTS: Mapping[str, Callable[..., Part]] = {
    "goodput": faults_a_minute.measure,
    "rehearsed": rehearsed_faults.measure,
    "rehearsed_trace": partial(rehearsed_traces.measure, 2),
    "rehearsed_alone": partial(rehearsed_traces.measure, 1),
    "joins": joins.measure,
    "notices": notices.measure,
    "faults": injected_faults.measure,
    "warm": warm_spares.measure,
    "optimizer_states": optimizer_states.measure,
    "g4dn_fast": partial(traces.rented_part, "g4dn", 10.0),
    "p3_fast": partial(traces.rented_part, "p3", 10.0),
    "g4dn": partial(traces.rented_part, "g4dn", 1.0),
    "homes": traces.home_part,
    "p3": partial(traces.rented_part, "p3", 1.0),
}


def main(arguments: list[str] | None = None) -> int:
    """The exit code: see run_parts."""
    parser = parser_for("churn", __doc__, list(PARTS))
    parser.add_argument("--faults", type=int, default=WANTED, help="how many more faults the part of that name injects")
    asked = parser.parse_args(arguments)
    parts = {name: partial(run, quick=asked.quick) for name, run in PARTS.items()}
    parts["faults"] = partial(injected_faults.measure, quick=asked.quick, faults=asked.faults)
    return run_parts("churn", asked, parts, title=TITLE, intro=INTRO)


if __name__ == "__main__":
    sys.exit(main())
