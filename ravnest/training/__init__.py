"""What training computes on one stage, besides the model: batches, losses, optimizers, weights and their averaging.

In: sections of a job file, a dataset, gradients. Out: micro-batches, losses and metrics, and new versions of weights.
"""
