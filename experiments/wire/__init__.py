"""What do shorter forms of numbers on the wire save, and what do they cost in learning?

In: nothing. Out: RESULT.md, result.json and a picture: held-out loss against bytes, across cuts and in rounds.
"""
