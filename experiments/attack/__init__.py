"""Strangers and liars against a run: what they slow, what they make it hold, and what they do to what is learned.

In: nothing. Out: RESULT.md beside this file; docs/experiments/attack.md says what each part does.
"""
