import random

import pytest

from ravnest.profiling.estimates import latency, sustained, together, typical


def transfer(rate: float, seconds: float = 4.0, *, rtt_s: float = 0.1, noise: float = 0.0) -> list[tuple[float, int]]:
    """Arrivals of 64 KiB blocks whose rate doubles each round trip until it is `rate`."""
    chance = random.Random(0)
    at_s, total, now = rtt_s, 0, 50_000.0
    arrivals = []
    while at_s < seconds:
        now = min(rate, 50_000.0 * 2 ** min(at_s / rtt_s, 40.0))
        at_s += 65536 / now * (1 + noise * (chance.random() - 0.5))
        total += 65536
        arrivals.append((at_s, total))
    return arrivals


def test_latency_is_half_of_the_shortest_round_trip() -> None:
    found = latency([9.0, 1.0, 0.012, 0.010, 0.013])
    assert found.seconds == 0.005
    assert found.jitter_s == pytest.approx(0.002)


def test_uniform_delays_of_both_ways_are_told_as_jitter() -> None:
    chance = random.Random(1)
    trips = [0.02 + 0.003 * (chance.random() + chance.random()) for _ in range(400)]
    found = latency(trips)
    assert found.seconds == pytest.approx(0.01, rel=0.02)
    assert found.jitter_s == pytest.approx(0.003, rel=0.15)


@pytest.mark.parametrize("rate", [1e6, 2.5e6, 1.25e7])
@pytest.mark.parametrize("rtt_s", [0.002, 0.1])
def test_slow_start_does_not_count(rate: float, rtt_s: float) -> None:
    found = sustained(transfer(rate, rtt_s=rtt_s), 4.0)
    assert found.value == pytest.approx(rate, rel=0.02)
    assert not found.is_uncertain


def test_what_arrives_after_the_sending_ended_does_not_count() -> None:
    arrivals = transfer(1e6)
    straggler = (arrivals[-1][0] + 30.0, arrivals[-1][1] + 65536)
    assert sustained([*arrivals, straggler], 4.0) == sustained(arrivals, 4.0)


def test_an_unsteady_transfer_is_called_uncertain() -> None:
    unsteady = [(i / 100, 65536 * (i if i < 80 else 80 + (i - 80) // 8)) for i in range(160)]
    assert sustained(unsteady, 2.0).is_uncertain


def test_too_little_to_tell_is_no_estimate() -> None:
    with pytest.raises(ValueError, match="2 blocks"):
        sustained([(0.1, 10), (0.2, 20)], 4.0)
    with pytest.raises(ValueError, match="no round trip"):
        latency([])
    with pytest.raises(ValueError, match="nothing"):
        typical([])


def test_transfers_at_once_share_what_there_is_though_each_was_fast_for_a_while() -> None:
    first = [(i / 100, 20_000 * i) for i in range(1, 301)]  # 2 MB/s all along
    burst = [(1.0 + i / 100, 10_000 * i) for i in range(1, 201)]  # 1 MB/s, from the first second on
    found = together([first, burst], 3.0)
    assert found.value == pytest.approx(3e6, rel=0.02)
    by_turns = [
        [(i / 100, 10_000 * min(i, 200)) for i in range(1, 401)],
        [(i / 100, 10_000 * max(0, i - 200)) for i in range(1, 401)],
    ]
    assert together(by_turns, 4.0).value == pytest.approx(1e6, rel=0.02)


def test_the_typical_value_ignores_one_stray_among_many() -> None:
    found = typical([1.0] * 18 + [1.02, 7.0])
    assert found.value == 1.0
    assert found.spread < 0.05
