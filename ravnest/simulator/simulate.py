"""Simulates a run of a plan under the virtual clock, with what a scenario adds, and reads off its figures.

In: a plan, a scenario, and an end in samples or virtual seconds. Out: a `SimulatedRun`. The steady state lasts from a
fifth of the run to the drain. The state machines of a real run (ravnest/pipeline) decide what happens. This machine's
clock is read for one figure only: how long the simulation took.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from cluster_planner import NoFeasiblePlan, Plan
from ravnest.errors import InvalidInput
from ravnest.recovery import HourWatch, NodesLeft, Restarts, can_begin, plan_for
from ravnest.recovery.restarting import FIRST_WAIT_S, NODES_WAIT_S, nodes_of_stages
from ravnest.simulator.figures import read
from ravnest.simulator.planning_anew import Planner
from ravnest.simulator.presence import Presence, absent_at_first
from ravnest.simulator.scenario import Scenario
from ravnest.simulator.session import Session
from ravnest.simulator.simulated_run import BegunAnew, SimulatedRun

STEADY_FROM = 0.2
"""The share of the run after which the steady state begins."""
DEFAULT_S = 3600.0
"""Virtual seconds that are simulated where no end is given."""

OnProgress = Callable[[float, float, int], None]
"""A function of the share that is done (0 to 1), the virtual time in seconds, and the number of events so far."""


def simulate(
    plan: Plan,
    scenario: Scenario | None = None,
    *,
    samples: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
    on_progress: OnProgress | None = None,
    stop: Callable[[], bool] | None = None,
    planner: Planner = plan_for,
) -> SimulatedRun:
    """Simulate one run of `plan`. The same seed gives the same figures, except for `wall_s`.

    Arguments:
        scenario: what happens beyond the plan; None: everything goes as planned.
        samples: the run ends when the fleet has made so many samples.
        seconds: the run ends after so many virtual seconds: DEFAULT_S where neither end is given.
        seed: of jitter and of stalls by chance.
        on_progress: hears how far the simulation has come.
        stop: is asked as often whether training is to end there.
        planner: plans anew, where no cluster is left or that pays.

    Raises:
        InvalidInput: both ends are given, one of them is impossible, the scenario names an unknown node, or one that
            is idle and would stall, or the nodes that are there at first cannot train the model.
    """
    if samples is not None and seconds is not None:
        raise InvalidInput("give samples or seconds, not both")
    for key, value in (("samples", samples), ("seconds", seconds)):
        if value is not None and not 0 < value < float("inf"):
            raise InvalidInput(f"must be a finite number above 0, not {value!r}", key=key)
    wanted = scenario or Scenario()
    wanted.require_nodes(nodes_of_stages(plan), {spare.node for spare in plan.spares})
    if samples is None and seconds is None:
        seconds = DEFAULT_S
    return _Simulation(plan, wanted, seed, planner).run(samples, seconds, on_progress, stop)


class _Simulation:
    """A run of one session, or of several where it begins again."""

    def __init__(self, plan: Plan, scenario: Scenario, seed: int, planner: Planner) -> None:
        self._plan = plan
        self._scenario = scenario
        self._seed = seed
        self._planner = planner
        self._changes = scenario.changes()
        self._presence = Presence(plan.fleet.names, absent_at_first(self._changes))
        self._hours = None if scenario.begins_at_hour is None else HourWatch(plan.fleet.nodes)
        self._left = NodesLeft()
        self._sessions: list[Session] = []
        self._begun_anew: list[BegunAnew] = []
        self._kept = 0
        """Samples in the checkpoint that the present session began from."""
        self._stopped_early = False

    def run(
        self,
        samples: int | None,
        seconds: float | None,
        on_progress: OnProgress | None,
        stop: Callable[[], bool] | None,
    ) -> SimulatedRun:
        """Simulate, and begin again as often as no cluster is left and nodes are."""
        began_s = time.perf_counter()
        restarts, saved = Restarts(), None
        plan = self._among(self._plan)
        if plan is None:
            raise InvalidInput("the nodes that are there at the start cannot train the model", key="trace")
        start_s: float | None = 0.0
        while start_s is not None:
            session = Session(
                plan,
                self._scenario,
                self._presence,
                self._hours,
                planner=self._planner,
                seed=self._seed,
                start_s=start_s,
                left=self._left,
                first=self._plan,
            )
            self._sessions.append(session)
            ended_s = self._train(session, samples, seconds, on_progress, stop)
            if session.run.all_lost_s is not None:
                made, kept = session.averaged, 0 if session.saved is None else session.saved[1]
                if session.saved is not None:
                    saved = f"{len(self._sessions)}/{session.saved[0]}"
                gone = nodes_of_stages(session.plan) - self._left.if_need_be(self._presence.alive(ended_s))
                wait_s = restarts.after(saved, gone=bool(gone))
            else:
                made, wait_s = session.averaged, None if session.next_plan is None else 0.0
                kept = made  # its last round is saved
            if wait_s is None:
                break
            found = self._start_again(session.next_plan or session.plan, ended_s, wait_s, seconds)
            start_s = None
            if found is not None:
                plan, start_s = found
                self._kept += kept
                purpose = session.next_plan is not None
                self._begun_anew.append(
                    BegunAnew(ended_s, start_s, made - kept, plan is not session.plan, on_purpose=purpose)
                )
        return read(
            self._sessions,
            seed=self._seed,
            kept=self._kept,
            begun_anew=tuple(self._begun_anew),
            steady_from_s=STEADY_FROM * seconds if seconds is not None else 0.0,
            wall_s=time.perf_counter() - began_s,
            stopped_early=self._stopped_early,
        )

    def _train(
        self,
        session: Session,
        samples: int | None,
        seconds: float | None,
        on_progress: OnProgress | None,
        stop: Callable[[], bool] | None,
    ) -> float:
        """Train in one session. Returns when it ended."""
        run = session.run
        events = sum(each.run.clock.events for each in self._sessions[:-1])

        def progress() -> None:
            made = self._kept + run.total_samples
            done = made / samples if samples else run.clock.now_s / (seconds or 1.0)
            if on_progress is not None:
                on_progress(min(1.0, done), run.clock.now_s, events + run.clock.events)
            if stop is not None and not run.draining and stop():
                self._stopped_early = True
                run.end()

        left = None if samples is None else max(1, samples - self._kept)
        steady = STEADY_FROM * (left if left is not None else seconds or 0.0)
        result = session.train(left, seconds, steady=steady, on_progress=progress)
        return result.end_s if run.all_lost_s is None else run.all_lost_s

    def _start_again(
        self, plan: Plan, lost_s: float, wait_s: float, seconds: float | None
    ) -> tuple[Plan, float] | None:
        """Return the plan with which a run goes on whose last cluster was lost, and when; None: it does not."""
        ends_s = float("inf") if seconds is None else seconds
        looked_s, at_s = lost_s, lost_s + wait_s
        while at_s < min(ends_s, lost_s + NODES_WAIT_S):
            self._advance(looked_s, at_s)
            new, looked_s = self._among(plan), at_s
            if new is None:  # until somebody comes
                later = [each.at_s for each in self._changes if each.at_s > at_s]
                later += [back_s for back_s in self._presence.coming if back_s > at_s]
                if not later:
                    return None
                at_s = min(later)
                continue
            start_s = at_s + self._scenario.restart_s
            self._advance(looked_s, start_s)
            looked_s = start_s
            gone = nodes_of_stages(new) - self._presence.alive(start_s)
            if not gone:
                return (new, start_s) if start_s < ends_s else None
            at_s = start_s + FIRST_WAIT_S
        return None

    def _advance(self, from_s: float, to_s: float) -> None:
        """Let nodes come and go between two sessions: after `from_s`, and up to `to_s`."""
        for change in self._changes:
            if from_s < change.at_s <= to_s:
                self._presence.take(change)
        self._presence.now_s = to_s

    def _among(self, plan: Plan) -> Plan | None:
        away = frozenset() if self._hours is None else self._hours.away
        alive = self._presence.alive(self._presence.now_s) - away
        self._left.look(alive)
        for nodes in (self._left.without(alive), self._left.if_need_be(alive)):
            with suppress(NoFeasiblePlan):
                return plan if can_begin(plan, nodes) else self._planner(plan, nodes)
        return None
