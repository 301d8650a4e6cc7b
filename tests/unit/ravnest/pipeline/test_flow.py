"""Flow counts for itself how stale each gradient is: the last word, should admission ever have let too much through."""

import pytest

from ravnest.pipeline import StageShape
from ravnest.pipeline.flow import Admission, Flow
from ravnest.pipeline.stage_shape import IllegalEventError
from tests.unit.ravnest.pipeline.bench import Bench, gradients


def shape(max_staleness: int) -> StageShape:
    return StageShape(stages=2, index=0, update_every=1, max_staleness=max_staleness, window=9, max_lag=1)


def with_forwards(max_staleness: int, count: int) -> Flow:
    """A first stage that has run `count` forwards at version 0, however many that is."""
    flow = Flow(shape(max_staleness), version=0)
    for _ in range(count):
        flow.forward_started()
        flow.forward_finished()
    return flow


def update_of(flow: Flow) -> None:
    flow.gradient_arrived(flow.gradients)
    flow.backward_finished()
    flow.update_finished()


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_a_gradient_staler_than_the_bound_is_an_error_and_one_at_the_bound_is_not(bound: int) -> None:
    flow = with_forwards(bound, bound + 2)
    for _ in range(bound + 1):
        update_of(flow)
    assert flow.staleness == dict.fromkeys(range(bound + 1), 1)
    flow.gradient_arrived(bound + 1)
    with pytest.raises(IllegalEventError, match=f"staleness {bound + 1} exceeds the bound of {bound}"):
        flow.backward_finished()


def test_the_staleness_of_a_group_is_told_until_its_update() -> None:
    flow = with_forwards(2, 2)
    update_of(flow)
    assert flow.group_staleness == []
    flow.gradient_arrived(1)
    flow.backward_finished()
    assert flow.group_staleness == [1]


def test_a_merge_makes_weights_of_its_own_but_no_staleness() -> None:
    flow = with_forwards(2, 1)
    assert flow.versions_alive == 1
    assert not flow.untouched
    flow.merge_finished()
    assert flow.versions_alive == 2
    assert flow.untouched
    flow.gradient_arrived(0)
    flow.backward_finished()
    assert flow.staleness == {0: 1}


def test_an_excess_that_admission_missed_fails_the_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Admission, "refusal", lambda self, micro_batch, in_flight, version: None)
    monkeypatch.setattr(Flow, "check", lambda self: None)  # it is for tests: a run has no second guard
    bench = Bench(2, 0, update_every=1, max_staleness=1)
    bench.work(3)  # forwards of micro-batches 0, 1 and 2 at version 0, the last of which is too early
    bench.tell(*gradients(0, 1, 2))
    said = bench.work(12)
    assert said.startswith("SA3 B0 U0 F4 SA4 B1 U1 F5 SA5 B2 FAIL")
    assert "staleness 2 exceeds the bound of 1" in said
