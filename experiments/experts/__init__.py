"""Experts behind a hash table: so far the table itself, with real processes and under the virtual clock.

In: numbers of nodes. Out: times, hops, and what part of the keys is found, as RESULT.md, result.json and result.png.
"""
