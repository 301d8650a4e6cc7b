"""Averaging among processes without a run: a rendezvous where they meet, and average(list of tensors) at each of them.

In: tensors and weights. Out: their weighted mean, in place, or an error that names who is to blame.
"""

from ring_allreduce.group.group import Group
from ring_allreduce.group.rendezvous import Rendezvous

__all__ = ["Group", "Rendezvous"]
