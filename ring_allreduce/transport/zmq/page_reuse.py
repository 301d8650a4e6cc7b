"""Memory of messages is kept for the next ones: fresh pages cost a third of what copying into them does.

glibc gives a freed block back to the system at once, until it has seen one as large being freed; from then on it keeps
blocks of that size for use. This lets it see one, as any process does that works with tensors for a while. Elsewhere it
has no effect.
"""

KEPT_BYTES = (32 << 20) - (1 << 16)
"""Just below the largest size that glibc keeps (DEFAULT_MMAP_THRESHOLD_MAX). Its pages are never touched."""


def keep_large_blocks() -> None:
    """Let this process keep what messages of up to KEPT_BYTES used."""
    bytearray(KEPT_BYTES)
