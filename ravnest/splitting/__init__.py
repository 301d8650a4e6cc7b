"""Splitting any PyTorch model into stages.

    capture(model, args) ──► CapturedModel ──span(a, b)──► StageProgram ──build(weights)──► StageModule
                                  │
                                  └─ costs ──► the planner

The planner's side captures once, on the meta device where it can; stages only build. See section 5 of the
design."""

from ravnest.splitting.capture import CapturedModel, capture
from ravnest.splitting.model_source import build_model, initial_weights
from ravnest.splitting.program import StageProgram, TensorSpec, ValueSpec
from ravnest.splitting.stage import StageModule
from ravnest.splitting.verify import Verification, verify

__all__ = [
    "CapturedModel",
    "StageModule",
    "StageProgram",
    "TensorSpec",
    "ValueSpec",
    "Verification",
    "build_model",
    "capture",
    "initial_weights",
    "verify",
]
