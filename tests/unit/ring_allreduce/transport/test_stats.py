"""Counters of an endpoint."""

from ring_allreduce.transport.stats import DropCause, Lane, Traffic, TransportStats


def test_counts_per_peer_and_lane():
    stats = TransportStats()
    stats.sent["b", Lane.BULK].add(10)
    stats.sent["b", Lane.BULK].add(5)
    stats.dropped[DropCause.MALFORMED] += 1
    assert stats.sent == {("b", Lane.BULK): Traffic(messages=2, n_bytes=15)}
    assert stats.dropped[DropCause.TOO_LARGE] == 0
    assert TransportStats().sent == {}
