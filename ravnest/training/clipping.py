"""The arithmetic of clipping an update's gradient by the norm over all stages.

Decides which norm a stage divides by when the true one is not in yet. Does not know how partial norms travel.
"""

import math
from collections.abc import Iterable

from ravnest.errors import RunFailed


def global_norm(stage_norms_sq: Iterable[float]) -> float:
    """L2 norm of a gradient from the squared norms of its parts, one per stage."""
    return math.sqrt(math.fsum(stage_norms_sq))


def norm_to_clip_by(own_norm_sq: float, last_known_norm: float | None) -> float:
    """The norm a stage of an asynchronous pipeline clips this update by.

    The last known global norm belongs to an earlier update; this update's is at least the stage's own part, so that
    part is a floor under it, and the whole answer while no global norm is known.
    """
    own = math.sqrt(own_norm_sq)
    return own if last_known_norm is None else max(own, last_known_norm)


def clip_scale(norm: float, clip_norm: float) -> float:
    """Factor in (0, 1] for the gradient, as torch.nn.utils.clip_grad_norm_ computes it.

    Raises RunFailed when the norm is not finite: scaling would turn every weight into NaN.
    """
    if not math.isfinite(norm):
        raise RunFailed(f"the gradient's norm is {norm}: training has diverged (lower optimizer.lr or clip_norm)")
    return min(1.0, clip_norm / (norm + 1e-6))
