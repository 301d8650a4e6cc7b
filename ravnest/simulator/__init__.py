"""Simulated runs under a virtual clock, with the stage, ring and round machines of a real run and without tensors.

In: a plan, a scenario, and an end. Out: a `SimulatedRun` with rates, staleness and where the time went.
"""

from ravnest.simulator.presence import NodeChange
from ravnest.simulator.scenario import BandwidthChange, Death, Join, Kill, Leave, Scenario, Slow, Stall, StallRate
from ravnest.simulator.simulate import simulate
from ravnest.simulator.simulated_run import BegunAnew, LostCluster, SimulatedRun, SimulatedStage, as_plain

__all__ = [
    "BandwidthChange",
    "BegunAnew",
    "Death",
    "Join",
    "Kill",
    "Leave",
    "LostCluster",
    "NodeChange",
    "Scenario",
    "SimulatedRun",
    "SimulatedStage",
    "Slow",
    "Stall",
    "StallRate",
    "as_plain",
    "simulate",
]
