"""Measures what tests cannot hold: one folder a question, and harness/ for what they share.

In: the program as it is, and baselines. Out: RESULT.md, result.json and result.png in each folder, with claims judged.
"""
