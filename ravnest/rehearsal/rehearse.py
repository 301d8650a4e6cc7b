"""Runs a plan on this machine with its nodes and links imitated, and compares it with what the plan predicted.

In: a plan, and how long and how fast to imitate it. Out: a `Rehearsal`, with the run's own result in it. How nodes are
imitated is decided in ravnest/driver/imitation.py, and which figures are compared in comparison.py.
"""

import os
from contextlib import nullcontext
from pathlib import Path

from cluster_planner import Plan, predicted_again
from ravnest.driver.acting import Acting
from ravnest.driver.imitation import Imitation
from ravnest.driver.observe.report import NoticeEvent, Observer
from ravnest.driver.training_run import run
from ravnest.errors import naming
from ravnest.formatting import duration
from ravnest.recovery import plan_among
from ravnest.rehearsal.comparison import ROUNDS, UPDATES, Rehearsal, check_extent, compare, extent
from ravnest.simulator import Scenario
from ravnest.simulator.scenario import load_scenario


def rehearse(
    plan: Plan,
    plan_path: Path | None = None,
    *,
    speed: float = 1.0,
    samples: int | None = None,
    minutes: float | None = None,
    whole: bool = False,
    out_dir: Path | None = None,
    timeline: bool = False,
    scenario: Scenario | str | os.PathLike[str] | None = None,
    observer: Observer,
) -> Rehearsal:
    """Train for real, with imitated machines, and compare.

    Arguments:
        plan_path: where the plan was read, for errors; None for a plan that was made in Python.
        speed: how many times as fast the imitated machines and links are; figures are scaled back.
        samples: end after so many samples of the fleet. At most one of `samples`, `minutes` and `whole` is given;
            without them the run ends after UPDATES updates of the slowest cluster and ROUNDS rounds of averaging, and
            at the latest after LONGEST_S seconds.
        minutes: end after so many minutes of this machine's time.
        whole: go on until the job's own end.
        scenario: what becomes of the machines meanwhile (ravnest/driver/acting.py), or the file that says so; None:
            they stay. Where some are not there at the start, the run begins by a plan for the others.
        out_dir, timeline, observer: see `run`.

    Raises:
        InvalidInput: for impossible arguments, and whatever `run` raises.
    """
    check_extent(speed, samples, minutes, whole=whole)
    acting = None
    if scenario is not None:
        source = None if isinstance(scenario, Scenario) else scenario
        wanted = scenario if isinstance(scenario, Scenario) else load_scenario(scenario)
        with naming(source) if source is not None else nullcontext():
            wanted.require_nodes(plan.fleet.names, ())
            acting = Acting(wanted, speed)
        found = plan_among(plan, acting.there(plan.fleet.names))
        if found is not plan:
            gone = ", ".join(sorted(acting.absent))
            observer.on(NoticeEvent(f"planned anew without {gone}, which are not there at the start"))
            plan, plan_path = found, None
    again = predicted_again(plan)
    until = extent(again, speed, samples=samples, minutes=minutes, whole=whole)
    if until.expected_s is not None:
        observer.on(NoticeEvent(f"rehearsing at speed {speed:g}: up to about {duration(until.expected_s)} of training"))
    if until.cut_short:
        least = f"{UPDATES} updates and {ROUNDS} rounds"
        observer.on(NoticeEvent(f"that is less than {least}: a larger --speed or --minutes would show more"))
    result = run(
        plan,
        plan_path,
        out_dir=out_dir,
        observer=observer,
        timeline=timeline,
        imitate=Imitation(speed=speed, acting=acting),
        limit=until.limit,
    )
    return compare(again, result, speed)
