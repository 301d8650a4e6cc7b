"""Does training with stale gradients and rare averaging converge as docs/theory.md says?

In: objectives, schedules of delays, and runs of the program. Out: RESULT.md, docs/convergence-report.md.
"""
