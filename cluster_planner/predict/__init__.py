"""What a plan will do: the time of each stage, hop and round, the steady state of all clusters, and their worth.

In: a fleet, costs, clusters and rings. Out: samples per second, memory, the bottleneck, and an upper bound.
"""
