"""Measures machines and their links for `ravnest profile`, and checks them against a plan for `ravnest doctor`.

In: a Ray address or this machine, a job, and a plan or a fleet. Out: a fleet with measured figures, or findings.
"""
