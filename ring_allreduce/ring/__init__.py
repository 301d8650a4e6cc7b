"""One ring: how a vector is divided, how chunks travel, and what a member computes in one round of it.

In: a ring's members and one contribution of each. Out: the same average at each member, or an error that names a peer.
"""
