"""What a plan is made from: the machines, what joins them, the model's costs and the user's constraints.

In: typed numbers in SI units, read from files or measured. Out: frozen objects that every other room computes with.
"""
