"""Rings as workers are asked for them: with the chunks, and ring or direct exchange, that the package would choose."""

from collections.abc import Sequence

from ring_timing import chunk_elements_for, direct_is_faster

FLOAT_BYTES = 4


def ring(
    name: str,
    members: Sequence[str],
    n_bytes: int,
    *,
    bytes_per_s: float | None = None,
    latency_s: float | None = None,
    shares: Sequence[float] | None = None,
) -> dict[str, object]:
    """A RingSpec as plain data. `bytes_per_s`, `latency_s`: of the slowest link; None: not known, as on loopback."""
    direct = shares is None and direct_is_faster(n_bytes, len(members), latency_s, bytes_per_s)
    return {
        "name": name,
        "members": list(members),
        "elements": n_bytes // FLOAT_BYTES,
        "chunk_elements": chunk_elements_for(bytes_per_s, FLOAT_BYTES, n_bytes),
        "shares": shares,
        "direct": direct,
    }
