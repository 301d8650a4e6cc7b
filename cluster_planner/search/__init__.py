"""Which nodes form clusters: k-means starts, repair, local search, exhaustive search, and search in blocks.

In: a fleet, costs, constraints and a seed. Out: the groups that are worth most, and the steps by which they were found.
"""
