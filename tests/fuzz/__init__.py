"""Fuzzing of everything that reads what others wrote: frames, messages and files (docs/threat-model.md).

`make fuzz` runs it guided by coverage, for as long as it is told; pytest runs the corpus and some seeded mutations.
"""
