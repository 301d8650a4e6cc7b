"""Real runs on this machine to which faults happen: each stage in a network namespace of its own, without Ray.

In: a seeded list of faults. Out: what became of the run after each.
"""
