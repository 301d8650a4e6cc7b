"""How good the planner's plans are, and how its time grows: `python -m experiments.plan_quality`."""
