"""Everything that uses Ray: a session, an actor for each stage, and the shipping of the user's code.

In: which stage runs on which node. Out: running processes, and the news that one has ended.
"""
