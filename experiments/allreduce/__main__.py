"""`python -m experiments.allreduce [--quick] [--only PART…] [--json]`: measure, judge, and write RESULT.md."""

import sys
from collections.abc import Callable, Mapping
from functools import partial

from experiments.allreduce import exactness, fault_table, lab, loopback, pipeline, rings, shaped, stability, wire_bytes
from experiments.allreduce.options import Options
from experiments.harness.command import parser_for, run_parts
from experiments.harness.report import Part

PARTS: Mapping[str, Callable[[Options], Part]] = {
    "exactness": exactness.run,
    "stability": stability.run,
    "bytes": wire_bytes.run,
    "loopback": loopback.run,
    "shaped": shaped.run,
    "rings": rings.run,
    "pipeline": pipeline.run,
    "faults": fault_table.run,
}
TITLE = "Parallel multi-ring all-reduce"
INTRO = (
    "Does the averaging of `ring_allreduce` give exact averages, at the speed of the wire, without more bytes than a "
    "ring needs, beside a running pipeline, and in spite of failures? Every baseline was measured in the same run as "
    "what it is compared to. docs/experiments.md says what each part does."
)


def main(arguments: list[str] | None = None) -> int:
    """The exit code: see run_parts."""
    parser = parser_for("allreduce", __doc__, list(PARTS))
    parser.add_argument("--wanlab", metavar="PATH", help="the program that emulates links with namespaces")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(arguments)
    program, why = lab.find(asked.wanlab)
    options = Options(asked.quick, asked.seed, program, why)
    parts = {name: partial(run, options) for name, run in PARTS.items()}
    flags = ["--seed", str(asked.seed)] if asked.seed else []
    return run_parts("allreduce", asked, parts, title=TITLE, intro=INTRO, flags=flags)


if __name__ == "__main__":
    sys.exit(main())
