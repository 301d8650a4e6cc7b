"""The job of the runs to which faults happen: a small model on walks along a random chain.

In: nothing. Out: a model and its data, for job.yaml.
"""
