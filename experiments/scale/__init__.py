"""What becomes of a run when its fleet grows from 10 to 10,000 nodes, and how fast is that simulated?

In: fleets on home links, from a seed. Out: RESULT.md.
"""
