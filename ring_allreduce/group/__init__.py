"""Averaging without a run: processes meet at a rendezvous, average lists of tensors, and leave.

In: a rendezvous's address and tensors. Out: the average over all members who took part, or an error within a deadline.
"""
