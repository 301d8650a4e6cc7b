"""Is what `ravnest profile` and `ravnest doctor` say of a real cluster true?

In: a Ray cluster with known rates, latencies and faults. Out: RESULT.md with what was measured beside what was set.
"""
