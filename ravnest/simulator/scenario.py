"""What happens to the machines of a simulated run beyond the plan: who comes and goes, stalls, jitter, bandwidth.

In: the arguments of a `Scenario`, or a YAML file that says the same with units in its keys. Out: a valid scenario, and
the random durations and stalls that follow from it and a seed. Whether its nodes exist is checked against a plan's
(`Scenario.require_nodes`).
"""

from __future__ import annotations

import math
import os
import random
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from cluster_planner import AtLeastZero, Positive, Strict, Text, read_validated
from ravnest.errors import InvalidInput, naming
from ravnest.recovery.placing import START_S
from ravnest.simulator.node_trace import read_trace
from ravnest.simulator.presence import NOTICE_S, NodeChange
from ring_allreduce.rounds import SILENCE_FLOOR_S

CONTROL_LATENCY_S = 0.005
RESTART_S = START_S
TOLD_S = 1.0
"""How long the end of a process takes at most until the driver knows of it, where nothing else is stated."""
_STAGE = re.compile(r"c\d+\.s?\d+")


@dataclass(frozen=True)
class Stall:
    """`node` stalls from `at_s` on for `for_s` seconds: it computes nothing and hears nothing."""

    node: str
    at_s: float
    for_s: float


@dataclass(frozen=True)
class Death:
    """`node` is gone from `at_s` on, the driver notices it after `noticed_after_s` seconds, and it is back after
    `back_after_s`."""

    node: str
    at_s: float
    noticed_after_s: float = SILENCE_FLOOR_S
    """By default those of a machine of which nothing is heard any more. The end of a process is told at once."""
    back_after_s: float | None = None
    """None: it never comes back."""


@dataclass(frozen=True)
class Kill:
    """The processes of stages on `node` end at `at_s`, as when they run out of memory. The node stays."""

    node: str
    at_s: float
    noticed_after_s: float = TOLD_S
    """The end of a process is told at once."""


@dataclass(frozen=True)
class Leave:
    """`node` gives notice at `at_s` that it leaves, is gone `notice_s` seconds later, and back after `back_after_s`."""

    node: str
    at_s: float
    notice_s: float = NOTICE_S
    back_after_s: float | None = None
    """Seconds after it was gone. None: it never comes back."""


@dataclass(frozen=True)
class Join:
    """`node` is there from `at_s` on. Where that is the first that is known of it, it was not there before."""

    node: str
    at_s: float


@dataclass(frozen=True)
class StallRate:
    """Each of `nodes` (empty: every node) stalls by chance `per_hour` times an hour, for `for_s` seconds on average.

    The gaps between stalls and their lengths are exponentially distributed.
    """

    per_hour: float
    for_s: float
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Slow:
    """`node` takes so many `times` as long to compute from `at_s` on, for `for_s` seconds."""

    node: str
    at_s: float
    times: float
    for_s: float = math.inf


@dataclass(frozen=True)
class BandwidthChange:
    """Uplinks carry `up` times, and downlinks `down` times, what the plan says from `at_s` on (1: as planned)."""

    at_s: float
    up: float = 1.0
    down: float = 1.0
    nodes: tuple[str, ...] = ()
    """The nodes that change; empty: every node."""


@dataclass(frozen=True)
class Scenario:
    """What happens beyond the plan. Without arguments everything goes as the plan says.

    Raises InvalidInput, which names the key, for a number that makes no sense.
    """

    compute_jitter: float = 0.0
    """The coefficient of variation of each computation's duration, which is lognormal with the planned mean."""
    link_jitter_s: float = 0.0
    """Each message arrives up to so much later by chance; where the plan has more jitter for a link, that counts."""
    control_latency_s: float = CONTROL_LATENCY_S
    """How long a message between the driver and any stage takes, one way."""
    stalls: tuple[Stall, ...] = ()
    stall_rates: tuple[StallRate, ...] = ()
    bandwidth: tuple[BandwidthChange, ...] = ()
    slow: tuple[Slow, ...] = ()
    deaths: tuple[Death, ...] = ()
    restart_s: float = RESTART_S
    """How long the processes of a lost cluster take to start, once its nodes are there and its loss was noticed; and
    those of all clusters, where none was left or everything was planned anew."""
    kills: tuple[Kill, ...] = ()
    leaves: tuple[Leave, ...] = ()
    joins: tuple[Join, ...] = ()
    trace: tuple[NodeChange, ...] = ()
    """More nodes that come and go (see node_trace.py)."""
    begins_at_hour: float | None = None
    """The hour of the day, in UTC, at which the run begins: then the nodes' `hours` are acted out. None: they are
    not."""
    plans_anew: bool = False
    """Whether the run goes on by another plan as soon as that pays (recovery/replanning.py), as a real one does. For
    each set of nodes a plan is made, which takes the planner as long as ever."""

    def __post_init__(self) -> None:
        for key, value in (
            ("compute_jitter", self.compute_jitter),
            ("link_jitter", self.link_jitter_s),
            ("control_latency", self.control_latency_s),
            ("restart_s", self.restart_s),
        ):
            _require(value, key, least=0.0)
        for i, stall in enumerate(self.stalls):
            _require(stall.at_s, f"stalls[{i}].at_s", least=0.0)
            _require(stall.for_s, f"stalls[{i}].for_s")
        for i, rate in enumerate(self.stall_rates):
            _require(rate.per_hour, f"stall_rates[{i}].per_hour")
            _require(rate.for_s, f"stall_rates[{i}].for_s")
        for i, change in enumerate(self.bandwidth):
            _require(change.at_s, f"bandwidth[{i}].at_s", least=0.0)
            _require(change.up, f"bandwidth[{i}].up")
            _require(change.down, f"bandwidth[{i}].down")
        for i, slow in enumerate(self.slow):
            _require(slow.at_s, f"slow[{i}].at_s", least=0.0)
            _require(slow.times, f"slow[{i}].times")
            if slow.for_s != math.inf:
                _require(slow.for_s, f"slow[{i}].for_s")
        for i, death in enumerate(self.deaths):
            _require(death.at_s, f"deaths[{i}].at_s", least=0.0)
            _require(death.noticed_after_s, f"deaths[{i}].noticed_after_s", least=0.0)
            if death.back_after_s is not None:
                _require(death.back_after_s, f"deaths[{i}].back_after_s", least=0.0)
        for i, kill in enumerate(self.kills):
            _require(kill.at_s, f"kills[{i}].at_s", least=0.0)
            _require(kill.noticed_after_s, f"kills[{i}].noticed_after_s", least=0.0)
        for i, leave in enumerate(self.leaves):
            _require(leave.at_s, f"leaves[{i}].at_s", least=0.0)
            _require(leave.notice_s, f"leaves[{i}].notice_s", least=0.0)
            if leave.back_after_s is not None:
                _require(leave.back_after_s, f"leaves[{i}].back_after_s", least=0.0)
        for i, join in enumerate(self.joins):
            _require(join.at_s, f"joins[{i}].at_s", least=0.0)
        if self.begins_at_hour is not None:
            _require(self.begins_at_hour, "begins_at_hour", least=0.0)

    def changes(self) -> list[NodeChange]:
        """What becomes of nodes, in the order of the moments, but for stalls and hours."""
        found = list(self.trace)
        for death in self.deaths:
            until_s = math.inf if death.back_after_s is None else death.at_s + death.back_after_s
            found.append(NodeChange(death.at_s, death.node, "gone", death.noticed_after_s, until_s))
        found += [NodeChange(kill.at_s, kill.node, "ended", kill.noticed_after_s) for kill in self.kills]
        for leave in self.leaves:
            gone_s = leave.at_s + leave.notice_s
            until_s = math.inf if leave.back_after_s is None else gone_s + leave.back_after_s
            found.append(NodeChange(leave.at_s, leave.node, "notice", why="it gives notice"))
            found.append(NodeChange(gone_s, leave.node, "gone", 0.0, until_s))
        found += [NodeChange(join.at_s, join.node, "back", why="it has come") for join in self.joins]
        return sorted(found, key=lambda each: each.at_s)

    def after(self, end_s: float) -> list[str]:
        """Says of everything that would happen at `end_s` or later its key, its node and its moment."""
        late = [(each.at_s, f"stalls[{i}] ({each.node}") for i, each in enumerate(self.stalls)]
        for i, change in enumerate(self.bandwidth):
            late.append((change.at_s, f"bandwidth[{i}] ({', '.join(change.nodes) or 'every node'}"))
        late += [(each.at_s, f"slow[{i}] ({each.node}") for i, each in enumerate(self.slow)]
        late += [(each.at_s, f"deaths[{i}] ({each.node}") for i, each in enumerate(self.deaths)]
        late += [(each.at_s, f"kills[{i}] ({each.node}") for i, each in enumerate(self.kills)]
        late += [(each.at_s, f"leaves[{i}] ({each.node}") for i, each in enumerate(self.leaves)]
        late += [(each.at_s, f"joins[{i}] ({each.node}") for i, each in enumerate(self.joins)]
        for last in self.trace[-1:]:
            late.append((last.at_s, f"trace ({last.node}"))
        return [f"{name} at {at_s:g} s)" for at_s, name in late if at_s >= end_s]

    def require_nodes(self, known: Collection[str], idle: Collection[str]) -> None:
        """Raises InvalidInput for a node that is not `known`, or that would stall or change while it runs no stage
        (`idle`).

        A stage that is named in place of a node, as in `c0.s1`, gets a hint that says so.
        """
        named = [(f"stalls[{i}].node", stall.node) for i, stall in enumerate(self.stalls)]
        named += [(f"stall_rates[{i}].nodes", name) for i, each in enumerate(self.stall_rates) for name in each.nodes]
        named += [(f"bandwidth[{i}].nodes", name) for i, each in enumerate(self.bandwidth) for name in each.nodes]
        named += [(f"slow[{i}].node", each.node) for i, each in enumerate(self.slow)]
        may_idle = [(f"deaths[{i}].node", death.node) for i, death in enumerate(self.deaths)]
        may_idle += [(f"kills[{i}].node", kill.node) for i, kill in enumerate(self.kills)]
        may_idle += [(f"leaves[{i}].node", leave.node) for i, leave in enumerate(self.leaves)]
        may_idle += [(f"joins[{i}].node", join.node) for i, join in enumerate(self.joins)]
        may_idle += [("trace", change.node) for change in self.trace]
        for key, name in named + may_idle:
            if name in idle and (key, name) in named:
                raise InvalidInput(f"{name!r} runs no stage in this plan: it is a spare", key=key)
            if name not in known and name not in idle:
                hint = None
                if _STAGE.fullmatch(name):
                    hint = "a stage is written as in c0.s1 everywhere, and a scenario names the node that runs it"
                raise InvalidInput(f"no node of the plan is named {name!r}", key=key, hint=hint)


def _require(value: float, key: str, *, least: float | None = None) -> None:
    if not math.isfinite(value) or value < 0 or (least is None and value == 0):
        expected = "a finite number above 0" if least is None else "a finite number, 0 or more"
        raise InvalidInput(f"must be {expected}, not {value!r}", key=key)


def computing_slowness(seed: int, who: str, variation: float) -> Callable[[], float]:
    """Return a function that draws by which factor the next computation of the stage `who` takes longer.

    The factor is lognormal with mean 1 and the coefficient of variation `variation`.
    """
    normal = random.Random(f"{seed}/compute/{who}").gauss
    sigma = math.sqrt(math.log1p(variation * variation))
    mean, exp = -sigma * sigma / 2, math.exp
    return lambda: exp(normal(mean, sigma))


def chance_stalls(seed: int, node: str, number: int, per_hour: float, for_s: float) -> Iterator[tuple[float, float]]:
    """Yields (gap before it, length) of the stalls of one node, both in seconds, without an end.

    `number` is the place of their `StallRate` in the scenario; each draws random numbers of its own.
    """
    chance = random.Random(f"{seed}/stalls/{node}/{number}")
    while True:
        yield chance.expovariate(per_hour / 3600.0), chance.expovariate(1.0 / for_s)


_MS = 1e-3


class _StallEntry(Strict):
    node: Text
    at_s: AtLeastZero
    for_s: Positive


class _SlowEntry(Strict):
    node: Text
    at_s: AtLeastZero
    times: Positive
    for_s: Positive = math.inf


class _DeathEntry(Strict):
    node: Text
    at_s: AtLeastZero
    noticed_after_s: AtLeastZero = SILENCE_FLOOR_S
    back_after_s: AtLeastZero | None = None


class _KillEntry(Strict):
    node: Text
    at_s: AtLeastZero
    noticed_after_s: AtLeastZero = TOLD_S


class _LeaveEntry(Strict):
    node: Text
    at_s: AtLeastZero
    notice_s: AtLeastZero = NOTICE_S
    back_after_s: AtLeastZero | None = None


class _JoinEntry(Strict):
    node: Text
    at_s: AtLeastZero


class _TraceEntry(Strict):
    file: Text
    speed: Positive = 1.0
    noticed_after_s: AtLeastZero = SILENCE_FLOOR_S
    notice_s: AtLeastZero = 0.0


class _StallRateEntry(Strict):
    per_hour: Positive
    for_s: Positive
    nodes: Annotated[list[Text], Field(min_length=1)] | None = None


class _BandwidthEntry(Strict):
    at_s: AtLeastZero
    up: Positive = 1.0
    down: Positive = 1.0
    nodes: Annotated[list[Text], Field(min_length=1)] | None = None


class _ScenarioFile(Strict):
    FILE: ClassVar[str] = "a scenario"

    compute_jitter: AtLeastZero = 0.0
    link_jitter_ms: AtLeastZero = 0.0
    control_latency_ms: AtLeastZero = CONTROL_LATENCY_S / _MS
    stalls: list[_StallEntry] = Field(default_factory=list)
    stall_rates: list[_StallRateEntry] = Field(default_factory=list)
    bandwidth: list[_BandwidthEntry] = Field(default_factory=list)
    slow: list[_SlowEntry] = Field(default_factory=list)
    deaths: list[_DeathEntry] = Field(default_factory=list)
    restart_s: AtLeastZero = RESTART_S
    kills: list[_KillEntry] = Field(default_factory=list)
    leaves: list[_LeaveEntry] = Field(default_factory=list)
    joins: list[_JoinEntry] = Field(default_factory=list)
    trace: _TraceEntry | None = None
    begins_at_hour: Annotated[float, Field(ge=0, lt=24)] | None = None
    plans_anew: bool = False


def load_scenario(path: str | os.PathLike[str]) -> Scenario:
    """Read a scenario from a YAML file. Raises InvalidInput, which names the file, the key and what was expected."""
    entry = read_validated(path, _ScenarioFile)
    traced = entry.trace
    trace: tuple[NodeChange, ...] = ()
    if traced is not None:
        beside = Path(path).parent / traced.file
        trace = read_trace(beside, speed=traced.speed, noticed_after_s=traced.noticed_after_s, notice_s=traced.notice_s)
    with naming(path):
        return Scenario(
            compute_jitter=entry.compute_jitter,
            link_jitter_s=entry.link_jitter_ms * _MS,
            control_latency_s=entry.control_latency_ms * _MS,
            stalls=tuple(Stall(each.node, each.at_s, each.for_s) for each in entry.stalls),
            stall_rates=tuple(StallRate(e.per_hour, e.for_s, tuple(e.nodes or ())) for e in entry.stall_rates),
            bandwidth=tuple(BandwidthChange(e.at_s, e.up, e.down, tuple(e.nodes or ())) for e in entry.bandwidth),
            slow=tuple(Slow(e.node, e.at_s, e.times, e.for_s) for e in entry.slow),
            deaths=tuple(Death(e.node, e.at_s, e.noticed_after_s, e.back_after_s) for e in entry.deaths),
            restart_s=entry.restart_s,
            kills=tuple(Kill(e.node, e.at_s, e.noticed_after_s) for e in entry.kills),
            leaves=tuple(Leave(e.node, e.at_s, e.notice_s, e.back_after_s) for e in entry.leaves),
            joins=tuple(Join(each.node, each.at_s) for each in entry.joins),
            trace=trace,
            begins_at_hour=entry.begins_at_hour,
            plans_anew=entry.plans_anew,
        )
