"""From a job and a fleet to a plan: the model is run once, captured, checked and costed, and the planner is asked.

In: a fleet and a job. Out: a Plan, or an InvalidInput that says what does not fit.
"""
