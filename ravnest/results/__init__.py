"""What is done with a finished run: evaluate its weights, export them, and show its metrics elsewhere.

In: a run's folder. Out: losses and metrics, files that other programs read.
"""
