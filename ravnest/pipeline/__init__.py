"""The asynchronous pipeline as decisions without I/O: the stage machine, its events and its instructions.

`StageMachine.handle(event, now_s)` returns instructions; the runtime carries them out for real, `virtual`
under a virtual clock. No torch, no sockets, no threads.
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
from ravnest.pipeline.stage_shape import StageShape, stage_name

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
    "stage_name",
]
