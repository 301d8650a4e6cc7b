"""The deadlines of a run that are constants, and the floors of those that are measured (design §9).

Pure. What turns measurements into a deadline is ring_allreduce/rounds/deadlines.py; docs/deadlines.md has the table of
all.
"""

ALIVE_EVERY_S = 1.0
"""How often the driver and the stages tell each other that they live."""

START_DEADLINE_S = 180.0
"""Ray, the actors and their imports: nothing has been measured yet, so this one is a constant."""

STATE_DEADLINE_S = 120.0
"""Longest time without one more piece of state arriving while weights are handed out or collected."""

STALL_FLOOR_S = 60.0
"""A run in which no stage makes any progress for this long, or for many times its usual gap, has stalled."""
