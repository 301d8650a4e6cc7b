"""How plans, runs, rehearsals, simulations and profiles are shown on a terminal, or as JSON.

In: results of the other rooms. Out: text.
"""
