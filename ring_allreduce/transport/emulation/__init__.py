"""Emulated links: the times at which a message leaves a node, reaches the next one and has entered it; no clock.

In: rates, delays and the sizes of messages. Out: the times at which they are sent and delivered.
"""
