"""One run: Ray places the stages, the driver steers them, and checkpoints and results are written.

In: a plan, and how the run is to go. Out: a `RunResult`, and the run's folder. `run` is imported when it is asked for,
because the processes of stages import this package for their actor and need no driver.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ravnest.driver.training_run import run

__all__ = ["run"]


def __getattr__(name: str) -> object:
    if name != "run":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ravnest.driver.training_run import run

    return run
