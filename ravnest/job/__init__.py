"""The job file as a typed object, and what its factories give: data, model, captured model, weights to start from.

In: job.yaml and the user's modules. Out: a Job and the objects that it names, or InvalidInput at a key.
"""
