"""A plan's run under a virtual clock: the stage, ring and round machines of a real run, without tensors."""

from ravnest.simulator.scenario import BandwidthChange, Scenario, Stall, StallRate
from ravnest.simulator.simulate import simulate
from ravnest.simulator.simulated_run import SimulatedRun, SimulatedStage, as_plain

__all__ = [
    "BandwidthChange",
    "Scenario",
    "SimulatedRun",
    "SimulatedStage",
    "Stall",
    "StallRate",
    "as_plain",
    "simulate",
]
