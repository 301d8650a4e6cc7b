"""How good are the planner's plans, and how does its time grow with the fleet?

In: fleets from a seed. Out: RESULT.md, beside exhaustive search, simpler planners and rehearsals.
"""
