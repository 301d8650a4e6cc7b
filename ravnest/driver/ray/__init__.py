"""The only room that knows Ray: a session, one actor for each stage, agents on nodes, and the shipping of user code.

In: which stage runs on which node. Out: running processes, and the news of their ends.
"""
