"""The driver of one real run on a Ray cluster that is there, as `ravnest run` is, but with each node's speed imitated.

Ends after a stated time and prints what the rehearsal of the same plan prints, so that both are read in one way. The
networks are real (as far as network namespaces are), so nothing of them is imitated.
"""

import argparse
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path

from cluster_planner import load_plan
from ravnest.driver import run
from ravnest.driver.imitation import Imitation
from ravnest.driver.observe.report import PhaseEvent, RunEvent, RunLimit
from ravnest.rehearsal.comparison import as_plain, compare


class Phases:
    """Tells the phases on stderr."""

    def on(self, event: RunEvent) -> None:
        if isinstance(event, PhaseEvent):
            print(event.name, file=sys.stderr, flush=True)


def main() -> None:
    """Run, and print one JSON document."""
    parser = argparse.ArgumentParser()
    parser.add_argument("plan", type=Path)
    parser.add_argument("--address", required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    plan = load_plan(asked.plan)
    with redirect_stdout(sys.stderr):
        result = run(
            plan,
            asked.plan,
            address=asked.address,
            out_dir=asked.out,
            observer=Phases(),
            imitate=Imitation(links=False, memory=False),
            limit=RunLimit(seconds=asked.seconds),
        )
    json.dump({"rehearsal": as_plain(compare(plan, result, 1.0))}, sys.stdout, allow_nan=False)


if __name__ == "__main__":
    main()
