"""Shows plans, runs, rehearsals, simulations and profiles on a terminal, or as JSON.

In: results of the other rooms. Out: text.
"""
