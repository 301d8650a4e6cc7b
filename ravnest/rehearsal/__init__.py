"""The real program with imitated machines: what was predicted beside what was achieved.

In: a plan and a rehearsed run's result. Out: a comparison for each cluster and each stage.
"""
