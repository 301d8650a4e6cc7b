"""What machines that come and go cost, in simulated time and against real processes.

In: recorded traces, and sessions and faults made from a seed. Out: RESULT.md.
"""
