"""Another plan for a run that trains: a process beside the run makes it, and the run goes on by it where that pays.

In: how the run stands (`Situation`). Out: instructions to save the run, and the plan that it begins again by. Whether
it pays is decided in ravnest/recovery/replanning.py. To plan takes seconds to minutes, for which the driver's loop
would wait, so a process of the lowest priority does it, in a folder of its own. It ends with the session.
"""

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Self

import ravnest
from cluster_planner import NoFeasiblePlan, Plan, load_plan, save_plan
from ravnest.driver.control import RunControl
from ravnest.driver.instructions import Instruction
from ravnest.driver.observe.place_events import PlannedAnewEvent
from ravnest.driver.observe.record import RunRecord
from ravnest.errors import RavnestError, RunFailed
from ravnest.recovery import (
    CONSIDER_EVERY_S,
    BetterPlan,
    PlanningAnew,
    PlanWanted,
    Replacements,
    plan_for,
    with_fleet,
)
from ravnest.recovery.placing import START_S

MOST_S = 600.0
"""A plan that has not been made by then is given up for these nodes."""
_END_S = 5.0
_SHOWN = 200  # characters of what the process wrote last
_GIVEN, _NODES, _MADE = "plan.yaml", "nodes.json", "made.yaml"


class PlanningProcess:
    """Makes one plan after another, each in a fresh process. A context manager, which ends the one that is left."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._folder: TemporaryDirectory[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._began_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._end()

    @property
    def busy(self) -> bool:
        """Whether a plan is being made, or has been made and was not asked for yet."""
        return self._process is not None

    def begin(self, plan: Plan, wanted: PlanWanted) -> None:
        """Begin to plan for those nodes, whatever the clusters of `plan` are. Raises OSError or InvalidInput where the
        disk refuses."""
        self._end()
        self._folder = TemporaryDirectory(prefix="ravnest-plan-")
        folder = Path(self._folder.name)
        save_plan(with_fleet(plan, wanted.plan.fleet), folder / _GIVEN)
        (folder / _NODES).write_text(json.dumps(sorted(wanted.nodes)))
        root = str(Path(ravnest.__file__).parents[1])
        places = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        command = [sys.executable, "-P", "-m", "ravnest.driver.planning_anew", str(folder)]
        with (folder / "said").open("wb") as said:
            self._process = subprocess.Popen(
                command,
                env={**os.environ, "PYTHONPATH": places},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
        self._began_s = self._now()

    def made(self) -> Plan | str | None:
        """The plan; None: the nodes cannot train the model; or in words why nobody knows. Call it once it is `done`."""
        assert self._process is not None
        assert self._folder is not None
        folder, code = Path(self._folder.name), self._process.poll()
        try:
            if code is None:
                return f"no plan was made within {MOST_S:.0f} s"
            if code:
                said = " ".join((folder / "said").read_text(errors="replace").split())[-_SHOWN:]
                return f"planning ended with {code}" + (f": {said}" if said else "")
            return load_plan(folder / _MADE) if (folder / _MADE).exists() else None
        except (OSError, RavnestError) as error:
            return str(error)
        finally:
            self._end()

    @property
    def done(self) -> bool:
        """Whether the plan that is being made has been made, or has taken too long."""
        process = self._process
        return process is not None and (process.poll() is not None or self._now() > self._began_s + MOST_S)

    def _end(self) -> None:
        process, folder = self._process, self._folder
        self._process = self._folder = None
        if process is not None and process.poll() is None:
            process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
        if folder is not None:
            with suppress(OSError):
                folder.cleanup()


def _beside(task: Callable[[], None]) -> None:
    Thread(target=task, name="nodes there", daemon=True).start()


class NodesThere:
    """Which nodes of a plan are there, asked in a thread beside the driver's: without its head Ray does not answer for
    minutes. It is called by the driver's thread alone."""

    def __init__(self, ask: Callable[[Plan], set[str]], beside: Callable[[Callable[[], None]], None] = _beside) -> None:
        """`beside` carries a task out in another thread, and does not wait for it."""
        self._ask = ask
        self._beside = beside
        self._asks = False
        self._answers = SimpleQueue[set[str] | RavnestError]()

    def __call__(self, plan: Plan) -> set[str]:
        """Ask, and return what was answered the last time. Raises RavnestError where nothing was answered since, or
        nothing could be: then with a cause."""
        said: set[str] | RavnestError = RunFailed("Ray has not said yet which nodes are there")
        with suppress(Empty):
            said, self._asks = self._answers.get_nowait(), False
        if not self._asks:
            self._asks = True
            self._beside(partial(self._answer, plan))
        if isinstance(said, RavnestError):
            raise said
        return said

    def _answer(self, plan: Plan) -> None:
        try:
            self._answers.put(self._ask(plan))
        except Exception as error:  # noqa: BLE001 - whatever Ray raises
            failed = RunFailed(str(error))
            failed.__cause__ = error
            self._answers.put(failed)


class PlansAnew:
    """Lets one session of a run end for a better plan. It belongs to the driver's thread."""

    def __init__(
        self, process: PlanningProcess, *, questioned: bool, now: Callable[[], float] = time.monotonic
    ) -> None:
        """`questioned`: whether the plan of the session was made by the run itself. The session begins now."""
        self._process = process
        self._questioned = questioned
        self._now = now
        self._began_s = now()
        self._planning: PlanningAnew | None = None
        self._wanted: PlanWanted | None = None
        self._due_s = -math.inf
        self.next_plan: Plan | None = None
        """The plan that the session ends for."""
        self._replacements: Replacements | None = None

    @property
    def trained(self) -> Plan | None:
        """The plan of the session as it is now, after all replacements; None: it has not begun to train."""
        return None if self._replacements is None else self._replacements.plan

    def steer(
        self,
        plan: Plan,
        replacements: Replacements,
        control: RunControl,
        record: RunRecord,
        alive: Callable[[Plan], set[str]],
    ) -> Callable[[float, float], list[Instruction]]:
        """Return what considers the matter at each turn of the loop while the run trains: a function of the time and
        the rest of the run, in seconds. `plan`: that of the session. `alive`: the nodes of a plan that are there."""

        self._replacements = replacements
        with suppress(RavnestError):
            alive(replacements.plan)  # asked now, it is known when training begins

        def turn(now_s: float, rest_s: float) -> list[Instruction]:
            if self._planning is None:
                began_in_s = max(START_S, self._now() - self._began_s)
                self._planning = PlanningAnew(began_in_s, questioned=self._questioned)
            if self._wanted is not None and self._process.done:
                made, wanted, self._wanted = self._process.made(), self._wanted, None
                if isinstance(made, str):
                    record.notice(f"no other plan is known for the nodes that are there: {made}")
                self._planning.found(wanted, None if isinstance(made, str) else made)
                self._due_s = now_s
            if now_s < self._due_s or self.next_plan is not None:
                return []
            self._due_s = now_s + CONSIDER_EVERY_S
            try:
                there = alive(replacements.plan)
            except RavnestError:
                return []  # Ray cannot be asked now, as without its head
            at = replacements.situation(there, control.clusters.leaving, now_s, rest_s)
            match self._planning.consider(at):
                case PlanWanted() as wanted if self._wanted is None:
                    self._begin(plan, wanted, self._planning, record)
                case BetterPlan() as better if not record.refused:  # else what was trained would be lost
                    self.next_plan = better.plan
                    gained = round(better.gained) if math.isfinite(better.gained) else None
                    record.happened(PlannedAnewEvent(better.reason, better.pause_s, gained))
                    return control.begin_again(better.reason)
            return []

        return turn

    def _begin(self, plan: Plan, wanted: PlanWanted, planning: PlanningAnew, record: RunRecord) -> None:
        try:
            self._process.begin(plan, wanted)
        except (OSError, RavnestError) as error:
            record.notice(f"no other plan can be made: {getattr(error, 'strerror', None) or error}")
            planning.found(wanted, None)
        else:
            self._wanted = wanted


def main(folder: Path) -> None:
    """Make the plan that is wanted in this folder; no file is written where the nodes cannot train the model."""
    os.nice(19)
    signal.alarm(int(MOST_S) + 60)  # the driver may be gone by then
    with suppress(NoFeasiblePlan):
        made = plan_for(load_plan(folder / _GIVEN), json.loads((folder / _NODES).read_text()))
        save_plan(made, folder / "made.part")
        (folder / "made.part").replace(folder / _MADE)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
