"""cluster_planner: groups unequal machines into clusters and cuts a model into stages for them.

Give it a fleet (machines and links), the costs of a model's units and a workload; it returns a plan:
clusters, stages, rings, spares and what to expect of them. It knows no tensor, socket or clock.
"""
