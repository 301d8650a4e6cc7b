"""One stage's process: the thread that owns its sockets, the thread that computes, and the state machine between them.

In: a StageSetup, weights, and messages of the driver, the neighbouring stages and the rings. Out: messages to all of
them, updates of the weights, and reports of what was done, how long it took and how much memory it needed.
"""
