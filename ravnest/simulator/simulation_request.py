"""A simulation as a user asks for it: with a scenario from a file, and as long as the job where no length is given.

In: a plan, and what the user said. Out: a `SimulatedRun` with remarks: why it ended there, and what had no effect.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace

from cluster_planner import Plan
from ravnest.errors import InvalidInput, naming
from ravnest.simulator.scenario import Scenario, load_scenario
from ravnest.simulator.simulate import OnProgress, simulate
from ravnest.simulator.simulated_run import LEAST_ROUNDS, SimulatedRun, too_short

MOST_EVENTS = 5_000_000
"""How many events a simulation without a given end may take: half a minute to a minute of one core. It takes up to
_LONGER times as many where fewer hold no LEAST_ROUNDS rounds of averaging."""
HOUR_S = 3600.0
"""How long a job is simulated that ends after epochs, whose samples the plan does not know."""
TRIED_EVENTS = 50_000
"""How many events a trial must have before it tells how many events a sample takes."""
_LEAST_UPDATES = 4
_LONGER = 4


def check_simulation(
    hours: float | None, samples: int | None, jitter: float | None, link_jitter_ms: float | None
) -> None:
    """Raises InvalidInput where the arguments of `simulate_as_asked` are impossible."""
    if hours is not None and samples is not None:
        raise InvalidInput("hours and samples say when to end: give one of them", key="samples")
    if hours is not None and not 0 < 3600 * hours < float("inf"):
        raise InvalidInput(f"must be a finite number above 0, not {hours:g}", key="hours")
    if samples is not None and samples < 1:
        raise InvalidInput(f"must be at least 1, not {samples}", key="samples")
    for key, value in (("jitter", jitter), ("link_jitter_ms", link_jitter_ms)):
        if value is not None and not 0 <= value < float("inf"):
            raise InvalidInput(f"must be a finite number, 0 or more, not {value:g}", key=key)


def simulate_as_asked(
    plan: Plan,
    scenario: Scenario | str | os.PathLike[str] | None,
    *,
    hours: float | None,
    samples: int | None,
    seed: int,
    jitter: float | None,
    link_jitter_ms: float | None,
    plan_path: str | os.PathLike[str] | None,
    on_progress: OnProgress | None,
    stop: Callable[[], bool] | None = None,
) -> SimulatedRun:
    """Simulates as `simulate` does, chooses the length where neither hours nor samples are given, and adds remarks.

    Arguments:
        hours, samples: virtual hours or samples of the fleet after which training ends.
        jitter: replaces the scenario's coefficient of variation of computations.
        link_jitter_ms: replaces the scenario's link jitter, in milliseconds.
        scenario: the scenario, or the scenario.yaml that describes it, which errors then name.
        plan_path: the file that other errors name; None for none.
        stop: is asked again and again whether the simulation is to end there, with what there is.
    """
    source = scenario if isinstance(scenario, str | os.PathLike) else plan_path
    wanted = load_scenario(scenario) if isinstance(scenario, str | os.PathLike) else scenario or Scenario()
    if jitter is not None:
        wanted = replace(wanted, compute_jitter=jitter)
    if link_jitter_ms is not None:
        wanted = replace(wanted, link_jitter_s=link_jitter_ms / 1000)
    with nullcontext() if source is None else naming(source):
        if hours is None and samples is None:
            until = default_length(plan, wanted, seed)
        else:
            until = SimulationLength(samples, None if hours is None else 3600 * hours, "")
        result = simulate(
            plan, wanted, samples=until.samples, seconds=until.seconds, seed=seed, on_progress=on_progress, stop=stop
        )
    unreached = tuple(wanted.after(result.drain_s))
    reason = "it was stopped before its end" if result.stopped_early else until.reason
    return replace(result, ended=reason, too_short=too_short(result, plan), unreached=unreached)


@dataclass(frozen=True)
class SimulationLength:
    """The end of a simulation: one of `samples` and `seconds`, both as `simulate` takes them, is given."""

    samples: int | None
    seconds: float | None
    reason: str
    """Why it ends there, in words."""


def default_length(
    plan: Plan,
    scenario: Scenario,
    seed: int,
    *,
    most_events: int = MOST_EVENTS,
    tried_events: int = TRIED_EVENTS,
) -> SimulationLength:
    """Returns how far a simulation goes whose end nobody has said: to the job's own end, if so many events are allowed.

    Arguments:
        most_events: about how many events are simulated at most.
        tried_events: how many events a trial must have before it tells how many events a sample takes.
    """
    samples, seconds, end = _stop(plan)
    wanted = samples if samples is not None else (seconds or HOUR_S) * plan.predicted.samples_per_s
    per_update = plan.workload.micro_batch * plan.workload.update_every * len(plan.clusters)
    tried = _LEAST_UPDATES * per_update
    while tried < wanted:
        made = simulate(plan, scenario, samples=tried, seed=seed)
        if made.events >= tried_events:
            affordable = int(made.samples * most_events / made.events)
            if len(plan.clusters) > 1:
                rounds = (LEAST_ROUNDS + 1) * plan.workload.round_samples(len(plan.clusters))
                affordable = max(affordable, min(int(rounds), _LONGER * affordable))
            if affordable < wanted:
                few = max(affordable, tried)
                share = f"{100 * few / wanted:.3g}%"
                reason = f"that is {share} of {end}, as far as some {most_events / 1e6:g} million events reach"
                return SimulationLength(few, None, f"{reason}; --samples or --hours goes on")
            break
        tried *= _LONGER
    return SimulationLength(samples, seconds, f"that is {end}")


def _stop(plan: Plan) -> tuple[int | None, float | None, str]:
    """Returns the job's own end in samples or in seconds, and a phrase that names it."""
    stop = plan.job.get("stop")
    said = stop if isinstance(stop, Mapping) else {}
    samples, minutes = said.get("samples"), said.get("minutes")
    if isinstance(samples, int):
        return samples, None, f"the job's own end ({samples:,} samples)"
    if isinstance(minutes, int | float):
        return None, 60.0 * minutes, f"the job's own end ({minutes:g} minutes)"
    return None, HOUR_S, "an hour, for the plan does not know how many samples the job's epochs are"
