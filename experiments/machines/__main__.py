"""`python -m experiments.machines [--quick] [--wanlab PATH] [--json]`: is what profile and doctor say true?"""

import sys
from collections.abc import Callable
from functools import cache

from experiments.allreduce import lab
from experiments.harness.command import parser_for, run_parts
from experiments.harness.report import Part
from experiments.machines import cut, judging
from experiments.machines.measure import Story, tell

TITLE = "Profile and doctor on a real cluster"
INTRO = (
    "A Ray cluster in wanlab: machines of two regions with asymmetric links. Does `ravnest profile` measure what the"
    " lab was set to, does `ravnest doctor` say what is wrong and nothing else, does a job train where its code is not,"
    " and what does a cut link leave?"
)
PARTS = {"links": judging.links, "cluster": judging.cluster}
CUT = "cut"


def main(arguments: list[str] | None = None) -> int:
    """The exit code: see run_parts."""
    parser = parser_for("machines", __doc__, [*PARTS, CUT])
    parser.add_argument("--wanlab", metavar="PATH", help="the program that emulates links with namespaces")
    asked = parser.parse_args(arguments)
    program, why = lab.find(asked.wanlab)

    @cache
    def story() -> Story:
        assert program is not None
        return tell(program, quick=asked.quick)

    def part(name: str, judge: Callable[[Story], Part]) -> Part:
        return judging.unmeasured(name, judge.__doc__ or name, why) if program is None else judge(story())

    def cut_part() -> Part:
        return judging.unmeasured(CUT, cut.TITLE, why) if program is None else cut.judge(cut.tell(program))

    parts: dict[str, Callable[[], Part]] = {
        name: (lambda name=name, judge=judge: part(name, judge)) for name, judge in PARTS.items()
    }
    return run_parts("machines", asked, {**parts, CUT: cut_part}, title=TITLE, intro=INTRO)


if __name__ == "__main__":
    sys.exit(main())
