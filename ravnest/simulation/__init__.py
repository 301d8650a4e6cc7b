"""A plan's run under a virtual clock: the stage, ring and round machines of a real run, without tensors."""

from ravnest.simulation.scenario import BandwidthChange, Scenario, Stall, StallRate
from ravnest.simulation.simulate import simulate
from ravnest.simulation.simulated import Simulated, SimulatedStage, as_plain

__all__ = [
    "BandwidthChange",
    "Scenario",
    "Simulated",
    "SimulatedStage",
    "Stall",
    "StallRate",
    "as_plain",
    "simulate",
]
