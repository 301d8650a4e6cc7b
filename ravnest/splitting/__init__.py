"""Splitting any PyTorch model into stages.

    capture(model, args) ──► CapturedModel ──span(a, b)──► StageProgram, weights ──► StageModule
                                  │
                                  └─ costs ──► the planner

In: a model and a sample batch, and a plan's spans. Out: units with their costs, the program of each span, and modules
that run them. The planner's side captures once, and stages only build. See design §5. What only the
planner's side needs is imported when it is first used: with torch's tracing it takes over 100 MiB, which a stage's
process does without.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from ravnest.splitting.initialization import Initialization
from ravnest.splitting.model_source import build_model, initial_buffers, initial_weights, twin_of
from ravnest.splitting.program import StageProgram, TensorSpec, ValueSpec
from ravnest.splitting.stage_module import StageModule

if TYPE_CHECKING:
    from ravnest.splitting.capturing import CapturedModel, capture, captured_short
    from ravnest.splitting.recording import record
    from ravnest.splitting.verification import Verification, verify

__all__ = [
    "CapturedModel",
    "Initialization",
    "StageModule",
    "StageProgram",
    "TensorSpec",
    "ValueSpec",
    "Verification",
    "build_model",
    "capture",
    "captured_short",
    "initial_buffers",
    "initial_weights",
    "record",
    "twin_of",
    "verify",
]

_PLANNER_SIDE = {
    "CapturedModel": "capturing",
    "capture": "capturing",
    "captured_short": "capturing",
    "record": "recording",
    "Verification": "verification",
    "verify": "verification",
}


def __getattr__(name: str) -> object:
    if name not in _PLANNER_SIDE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLANNER_SIDE[name]}"), name)
