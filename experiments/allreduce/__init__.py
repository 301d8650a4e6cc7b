"""Is averaging by `ring_allreduce` exact, as fast as the wire, lean in bytes, and sound in spite of failures?

In: members as processes on real and shaped links, with injected faults. Out: RESULT.md, beside gloo.
"""
