"""The best pipeline of one group of nodes: their order, the cuts, the window, and whether the group holds the model.

In: the nodes of one cluster and the model's costs. Out: stages with their spans, or the reason why there are none.
"""
