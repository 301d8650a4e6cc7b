"""Launching a run: Ray places the stages, the driver steers them, checkpoints and results are written here."""

from ravnest.launch.driver import run

__all__ = ["run"]
