"""What becomes of a stand-alone group when something happens to a member: some of experiments/allreduce/faults.

Faults come at a step, chosen by a seed: RAVNEST_FAULT_SEED tries others.
"""

import os
from collections.abc import Iterator

import pytest

from experiments.allreduce import fault_virtual
from experiments.allreduce.fault_plan import scenario
from experiments.allreduce.faults import WIRES, Nursery, outcome

SEED = int(os.environ.get("RAVNEST_FAULT_SEED", "0"))
pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as there:
        yield there


@pytest.mark.parametrize(
    "fault",
    [
        "killed",
        "killed as its ring finishes",
        "two killed",
        "frozen, back after it was left out",
        "cut off mid-chunk",
        "cut off for good",
        "does not call",
        "wrong size",
        "NaN",
        "one chunk of NaN",
        "reordered frames",
        "corrupt header",
        "stranger",
        "leaves and comes back",
        "rendezvous killed",
        "killed, all fail",
        "does not call, all fail",
        "wrong size, all fail",
    ],
)
def test_the_others_go_on(nursery: Nursery, fault: str) -> None:
    plan = scenario(fault, SEED, wires=WIRES)
    line = outcome(plan, nursery.run(plan))
    assert not line["hung"], f"{plan}: {line['outcome']}"
    assert not line["wrong"], f"{plan}: {line['outcome']}"


@pytest.mark.parametrize("fault", fault_virtual.FAULTS)
def test_several_rings_are_committed_over_all_or_none(fault: str) -> None:
    for seed in range(2 * SEED, 2 * SEED + 2):
        line = fault_virtual.scenario(fault, seed)
        assert not line["hung"], f"{fault} {seed}: {line['outcome']}"
        assert not line["wrong"], f"{fault} {seed}: {line['outcome']}"
