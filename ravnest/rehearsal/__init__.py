"""Rehearsals: the real program with imitated machines, and a comparison of what was predicted with what was achieved.

In: a plan. Out: a Rehearsal, with a comparison for the fleet, each cluster and each stage.
"""
