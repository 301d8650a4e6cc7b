"""`python -m experiments.fidelity [--quick] [--plans NAME…] [--json]`: does what is simulated and rehearsed come?"""

import sys
from functools import partial

from experiments.allreduce import lab
from experiments.fidelity import measure
from experiments.fidelity.sites import SHAPES, sites
from experiments.harness.command import parser_for, run_parts

SEED = 1
QUICK_PLANS = 2
TITLE = "Fidelity: simulated, rehearsed, real"
INTRO = (
    "Does a plan do on its machines what `ravnest simulate` and `ravnest rehearse` say before anybody owns them? "
    "Varied plans of 2 to 8 nodes in 1 to 3 clusters, on links of 5 to 200 Mbit/s and 1 to 100 ms, each simulated, "
    "rehearsed, and run for real on a Ray cluster of several nodes. docs/experiments.md says how."
)


def main(arguments: list[str] | None = None) -> int:
    """The exit code: see run_parts."""
    parser = parser_for("fidelity", __doc__, ["plans"])
    parser.add_argument("--wanlab", metavar="PATH", help="the program that emulates links with namespaces")
    parser.add_argument("--seed", type=int, default=SEED, help="of the plans")
    names = [site.name for site in sites(0)]
    parser.add_argument("--plans", nargs="+", choices=names, metavar="NAME", help=f"{names[0]} to {names[-1]}; all")
    asked = parser.parse_args(arguments)
    program, why = lab.find(asked.wanlab)
    if asked.quick:
        program, why = None, "not part of --quick"
    chosen = sites(asked.seed, QUICK_PLANS if asked.quick else len(SHAPES))
    if asked.plans:
        chosen = [site for site in sites(asked.seed) if site.name in asked.plans]
    work = partial(measure.run, chosen, quick=asked.quick, wanlab=program, why_not_real=why)
    flags = ["--seed", str(asked.seed)] if asked.seed != SEED else []
    flags += ["--plans", *asked.plans] if asked.plans else []
    return run_parts("fidelity", asked, {"plans": work}, title=TITLE, intro=INTRO, flags=flags)


if __name__ == "__main__":
    sys.exit(main())
