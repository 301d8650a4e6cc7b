"""Imitated links: when a message leaves a node, reaches the next one and is in. Arithmetic on times; no clock.

In: rates, delays and the sizes of messages. Out: the times at which they are sent and delivered.
"""
