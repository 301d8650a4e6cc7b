"""The asynchronous pipeline as decisions without I/O: the state machine of one stage, its events and its instructions.

In: events in the past tense (`ActivationArrived`) with the time of each, to `TunedStage` or `StageMachine.handle`.
Out: instructions (`RunForward`), which the runtime carries out for real and the simulator under a virtual clock.
"""

from ravnest.pipeline.events import Event
from ravnest.pipeline.instructions import (
    Compute,
    Instruction,
    Report,
    Send,
    format_trace,
    parse,
    parse_trace,
)
from ravnest.pipeline.stage_machine import StageMachine
from ravnest.pipeline.stage_shape import StageShape, spare_name, stage_name, stage_place

__all__ = [
    "Compute",
    "Event",
    "Instruction",
    "Report",
    "Send",
    "StageMachine",
    "StageShape",
    "format_trace",
    "parse",
    "parse_trace",
    "spare_name",
    "stage_name",
    "stage_place",
]
