from collections.abc import Callable

import numpy as np
import pytest

from cluster_planner.costs import ModelCosts, Unit, Workload
from cluster_planner.spans import MAX_POSITIONS, UPDATE_FLOPS, SpanCosts


def test_flops_are_forward_backward_and_a_share_of_the_update(
    make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    spans = SpanCosts(make_model(4, flops=10.0, parameter_bytes=8), make_workload(micro_batch=2, update_every=4))
    assert spans.flops(1, 3) == 3 * 20.0 * 2 + UPDATE_FLOPS * 16 / 4


def test_memory_follows_the_formula(
    make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    work = make_workload(
        micro_batch=2, max_staleness=1, max_lag=3, process_bytes=1000, averaging_state_bytes_per_parameter_byte=1.0
    )
    spans = SpanCosts(make_model(4, parameter_bytes=100, saved_bytes=7, boundary_bytes=5), work)
    copies = (1 + 1) + 1 + 2.0 + (1 + 2 * 3 + 1)
    assert spans.memory_bytes(0, 2, window=6) == 1000 + copies * 200 + 6 * 2 * 14
    assert spans.memory_bytes(2, 4, window=6) == 1000 + (copies - 1) * 200 + 2 * 14 + 5 * 2 * 5  # the last: one version


def test_a_synchronous_stage_needs_memory_for_what_its_schedule_holds(
    make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    def need(schedule: str, index: int, span: tuple[int, int]) -> int:
        work = make_workload(micro_batch=2, max_staleness=0, process_bytes=0, update_every=8, schedule=schedule)
        spans = SpanCosts(make_model(4, parameter_bytes=0, saved_bytes=7, boundary_bytes=5), work)
        return spans.stage_memory_bytes(*span, (index, 2), window=99)

    assert need("gpipe", 0, (0, 2)) == 8 * 2 * 14
    assert need("gpipe", 1, (2, 4)) == 8 * 2 * 14 + 2 * 5
    assert need("1f1b", 0, (0, 2)) == 2 * 2 * 14
    assert need("1f1b", 1, (2, 4)) == 1 * 2 * 14 + 2 * 5


def test_nothing_crosses_the_ends_of_the_model(
    make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    spans = SpanCosts(make_model(3, boundary_bytes=5, boundary_gradient_bytes=3), make_workload(micro_batch=2))
    assert spans.forward_bytes.tolist() == [0, 10, 10, 0]
    assert spans.gradient_bytes.tolist() == [0, 6, 6, 0]


def test_a_shorter_form_on_the_wire_counts_for_what_needs_a_gradient_only(
    make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    model = make_model(2, boundary_bytes=50, boundary_gradient_bytes=40)
    spans = SpanCosts(model, make_workload(micro_batch=2, activation_wire_ratio=0.25, gradient_wire_ratio=0.5))
    assert spans.forward_bytes.tolist() == [0, 2 * (10 + 10), 0]
    assert spans.gradient_bytes.tolist() == [0, 2 * 20, 0]


def test_tables_agree_with_spans(make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]) -> None:
    for schedule, window in ((None, 1), (None, 4), ("gpipe", 4)):
        work = make_workload() if schedule is None else make_workload(schedule=schedule, max_staleness=0)
        spans = SpanCosts(make_model(5), work)
        table = spans.memory_table(window)
        for a in range(6):
            for b in range(6):
                if a < b:
                    assert table[a, b] == pytest.approx(spans.memory_bytes(a, b, window))
                    assert spans.flops_table[a, b] == pytest.approx(spans.flops(a, b))
                else:
                    assert table[a, b] == spans.flops_table[a, b] == np.inf


@pytest.mark.parametrize("count", [1, 127, 128, 5000])
def test_few_positions_are_considered_for_many_units(
    make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload], count: int
) -> None:
    at = SpanCosts(make_model(count), make_workload()).positions
    assert at[0] == 0
    assert at[-1] == count
    assert (np.diff(at) > 0).all()
    assert len(at) <= MAX_POSITIONS + 1
    if count < MAX_POSITIONS:
        assert len(at) == count + 1


def test_among_many_units_cuts_are_where_few_bytes_cross(make_workload: Callable[..., Workload]) -> None:
    units = tuple(
        Unit(
            name=str(i),
            flops=1.0,
            parameter_bytes=1,
            saved_bytes=1,
            boundary_bytes=1 if i % 10 == 9 else 1000,
            boundary_gradient_bytes=0,
        )
        for i in range(5000)
    )
    spans = SpanCosts(ModelCosts(units, "x"), make_workload(micro_batch=1))
    inner = spans.positions[1:-1]
    assert np.median(spans.forward_bytes[inner]) == 1
