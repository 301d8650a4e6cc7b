"""What do models cost that no single machine can hold: memory of each process, and time?

In: models of several sizes. Out: RESULT.md, with the peak memory of each process beside what was aimed at.
"""
