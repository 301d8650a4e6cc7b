"""Memory that processes of one machine share: tensors are written once, or lent, and read where they lie.

In: tensors for a peer on this machine. Out: the peer's view of the same bytes, and their return when it is done.
"""
