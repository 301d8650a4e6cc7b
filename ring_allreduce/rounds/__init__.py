"""Many rings as one round: when it opens, who takes part, when it is committed, and what a merge does to the weights.

In: events (samples reported, ring finished, member lost). Out: instructions (open, commit, merge), in round order.
"""
