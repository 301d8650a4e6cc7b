"""Blocks that were freed are used again without fresh pages."""

import resource

from ring_allreduce.transport.zmq.zmq_endpoint import keep_large_blocks


def test_large_blocks_are_kept():
    keep_large_blocks()
    block = bytearray(b"x") * (4 << 20)
    del block
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        block = bytearray(b"x") * (4 << 20)
        del block
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 1024, "20 × 1024 with fresh pages each time"
