"""No bubbles: on links of a given rate and latency a ring takes hardly longer than its bytes."""

import pytest
import torch

from ring_allreduce.transport.emulation.links import LinkShape
from ring_timing import chunk_elements_for
from tests.unit.ring_allreduce.fleet import Fleet, spec


def seconds_of_a_round(members, elements, rate, latency, **options):
    clock = [0.0]
    chunk = chunk_elements_for(rate, 4, elements * 4)
    shape = LinkShape(bytes_per_s=rate, latency_s=latency)
    links = {(sender, to): shape for sender in members for to in members if sender != to}
    fleet = Fleet([spec(members=members, elements=elements, chunk=chunk, **options)], now=lambda: clock[0], links=links)
    for name in members:
        fleet.reducers[name].contribute(1, "r", torch.ones(elements), 1.0)
    while (due := fleet.network.next_due_s()) is not None:
        clock[0] = due
        for name in members:
            fleet.turn(name)
    assert all(fleet.results[name]["r", 1].average[0].item() == 1.0 for name in members)
    return max(reducer.stats["r"].seconds for reducer in fleet.reducers.values())


@pytest.mark.parametrize("members", ["abcd", "abcdef"])
@pytest.mark.parametrize(("rate", "latency"), [(2.5e6, 0.1), (2.5e6, 0.02), (12.5e6, 0.005)])
def test_a_ring_is_busy_from_the_first_chunk_to_the_last(members, rate, latency):
    n = len(members)
    elements = int(4 * n * rate * latency) // 4
    least_s = 2 * (n - 1) / n * elements * 4 / rate
    assert least_s / seconds_of_a_round(members, elements, rate, latency) >= 0.9


def test_two_members_wait_for_one_latency_only():
    elements, rate, latency = 100_000, 2.5e6, 0.1
    least_s = elements * 4 / rate + latency
    assert least_s / seconds_of_a_round("ab", elements, rate, latency, direct=True) >= 0.98
