from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from cluster_planner.errors import InvalidInput
from cluster_planner.inputs.model_costs import ModelCosts, Unit, Workload
from cluster_planner.inputs.spans import MAX_POSITIONS, UPDATE_FLOPS, SpanCosts


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


def test_numbers_of_16_bits_take_twice_the_part_of_their_bytes_and_never_more_than_all(
    make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    model = make_model(2, boundary_bytes=50, boundary_gradient_bytes=40, boundary_narrow_bytes=30)
    spans = SpanCosts(model, make_workload(micro_batch=2, activation_wire_ratio=0.25, gradient_wire_ratio=0.75))
    assert spans.forward_bytes.tolist() == [0, 2 * (10 + 2.5 + 15), 0]
    assert spans.gradient_bytes.tolist() == [0, 2 * (7.5 + 30), 0]


def tied_table(make_model: Callable[..., ModelCosts], work: Workload) -> SpanCosts:
    """Three units, the last of which borrows what the first holds."""
    each = {"parameter_bytes": 0, "saved_bytes": 0, "boundary_bytes": 5, "boundary_gradient_bytes": 5}
    units = make_model(3, **each, tied_bytes=120).units
    return SpanCosts(ModelCosts((*units[:2], replace(units[2], borrowed_bytes=120)), ""), work)


def test_tied_parameters_cross_once_an_update_and_are_held_by_who_borrows_them(
    make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    spans = tied_table(make_model, make_workload(micro_batch=2, update_every=4, max_staleness=1, process_bytes=0))
    assert spans.forward_bytes.tolist() == spans.gradient_bytes.tolist() == [0, 10 + 30, 10 + 30, 0]
    assert spans.memory_bytes(0, 1, 1) == 120  # the gradient from behind
    assert spans.memory_bytes(1, 2, 1) == 120  # what is passed on does not stay; the gradient waits
    assert spans.memory_bytes(2, 3, 1) == (1 + 2) * 120
    assert spans.room_to_split(2, 3, (2, 3), 1, 10**9) == 0
    table = spans.memory_table(1)
    for a, b in ((0, 1), (1, 2), (2, 3), (0, 3), (1, 3)):
        assert table[a, b] == spans.memory_bytes(a, b, 1)


def test_copies_of_tied_parameters_take_what_parameters_do_and_cross_no_cut(
    make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    work = make_workload(
        micro_batch=2, max_staleness=1, max_lag=1, process_bytes=0, tied="averaged", splits_backward=True
    )
    spans = tied_table(make_model, work)
    assert spans.forward_bytes.tolist() == spans.gradient_bytes.tolist() == [0, 10, 10, 0]
    assert spans.memory_bytes(0, 1, 1) == spans.memory_bytes(1, 2, 1) == 0
    assert spans.memory_bytes(2, 3, 1) == (1 + 1 + 2 + 3) * 120
    assert [spans.copied_bytes(*span) for span in ((0, 1), (1, 2), (2, 3), (0, 2), (1, 3))] == [120, 0, 120, 120, 120]
    assert spans.room_to_split(2, 3, (2, 3), 1, 10**9) > 0
    table = spans.memory_table(1)
    for a, b in ((0, 1), (1, 2), (2, 3), (0, 3), (1, 3)):
        assert table[a, b] == spans.memory_bytes(a, b, 1)


def test_tables_agree_with_spans(make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]) -> None:
    for schedule, window in ((None, 1), (None, 4), ("gpipe", 4)):
        work = make_workload() if schedule is None else make_workload(schedule=schedule, max_staleness=0)
        spans = SpanCosts(make_model(5), work)
        table = spans.memory_table(window)
        again = spans.memory_table(window, recomputes=True)
        flops, twice = spans.flops_table(), spans.flops_table(recomputes=True)
        for a in range(6):
            for b in range(6):
                if a < b:
                    assert table[a, b] == pytest.approx(spans.memory_bytes(a, b, window))
                    assert again[a, b] == pytest.approx(spans.memory_bytes(a, b, window, recomputes=True))
                    assert flops[a, b] == pytest.approx(spans.flops(a, b))
                    assert twice[a, b] == pytest.approx(spans.flops(a, b, recomputes=True))
                else:
                    assert table[a, b] == again[a, b] == flops[a, b] == twice[a, b] == np.inf


def test_a_stage_that_recomputes_keeps_inputs_and_runs_its_forward_twice(
    make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    figures = {"parameter_bytes": 0, "saved_bytes": 7, "boundary_bytes": 5, "boundary_gradient_bytes": 3}
    spans = SpanCosts(make_model(4, flops=10.0, **figures), make_workload(micro_batch=2, process_bytes=0))
    assert spans.flops(1, 3, recomputes=True) == 4 * 20.0 * 2
    assert spans.memory_bytes(1, 3, window=6, recomputes=True) == 2 * 14 + 7 * 2 * 5 + 6 * 2 * 3
    # The first stage reads its own batches, and the last makes its own gradients.
    assert spans.memory_bytes(0, 2, window=6, recomputes=True) == 2 * 14 + 6 * 2 * 3
    assert spans.memory_bytes(2, 4, window=6, recomputes=True) == 2 * (7 + 5) + 7 * 2 * 5


def test_a_stage_recomputes_unit_by_unit_where_that_takes_less_memory(
    make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    """Of each micro-batch in flight the inputs of the units behind the first, and the largest unit's activations."""
    figures = {"parameter_bytes": 0, "saved_bytes": 70, "boundary_bytes": 5, "boundary_gradient_bytes": 3}
    costs = make_model(6, **figures)
    costs = replace(costs, units=(*costs.units[:2], replace(costs.units[2], saved_bytes=90), *costs.units[3:]))
    spans = SpanCosts(costs, make_workload(micro_batch=2, process_bytes=0))
    waiting = 7 * 2 * 5 + 6 * 2 * 3
    assert spans.memory_bytes(1, 5, window=6, recomputes=True) == 2 * (90 + 6 * 3 * 5) + waiting
    assert spans.recomputes_unit_by_unit(1, 5, (1, 3), 6)
    assert spans.memory_bytes(1, 5, window=60, recomputes=True) == 2 * 300 + 61 * 2 * 5 + 60 * 2 * 3
    assert not spans.recomputes_unit_by_unit(1, 5, (1, 3), 60)
    assert not spans.recomputes_unit_by_unit(1, 2, (1, 3), 6)  # one unit is the same either way
    # The last stage has run one forward at a time.
    assert spans.memory_bytes(2, 6, window=60, recomputes=True) == 2 * (90 + 3 * 5) + 61 * 2 * 5
    table = spans.memory_table(6, recomputes=True)
    for start in range(6):
        for end in range(start + 1, 7):
            assert table[start, end] == pytest.approx(spans.memory_bytes(start, end, 6, recomputes=True))


def test_what_weights_are_cast_to_is_kept_with_each_version(
    make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    def need(**changes: float) -> int:
        spans = SpanCosts(make_model(4, parameter_bytes=100), make_workload(max_staleness=2, **changes))
        return spans.memory_bytes(1, 3, window=1)

    assert need(cast_bytes_per_parameter_byte=0.5) - need() == 3 * 100


def test_weights_of_16_bits_have_masters_and_smaller_versions(
    make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    costs = make_model(2, parameter_bytes=100)
    narrow = ModelCosts(tuple(replace(unit, narrow_bytes=50) for unit in costs.units), "")

    def more(start: int, **changes: float) -> float:
        work = make_workload(max_staleness=2, **changes)
        given = (start, start + 1, 4)
        return SpanCosts(narrow, work).memory_bytes(*given) - SpanCosts(costs, work).memory_bytes(*given)

    # A master of 100 and the gradient of a micro-batch of 50 more, and of each version 50 less, or cast 100.
    assert more(0) == 100 + 50 - 3 * 50
    assert more(1) == 100 + 50 - 50
    assert more(0, cast_bytes_per_parameter_byte=0.5) == 100 + 50 - 3 * 100
    spans = SpanCosts(narrow, make_workload(max_staleness=2))
    assert spans.memory_table(4)[0, 1] == spans.memory_bytes(0, 1, 4)
    assert spans.memory_table(4)[1, 2] == spans.memory_bytes(1, 2, 4)


def test_what_an_optimizer_keeps_is_counted_to_the_byte_where_it_is_known(
    make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    costs = make_model(3, parameter_bytes=100)
    first, *others = costs.units
    known = ModelCosts((replace(first, optimizer_bytes=7), *others), "")
    work = make_workload(optimizer_state_bytes_per_parameter_byte=2.0)
    told, ratio = SpanCosts(known, work), SpanCosts(costs, work)
    assert told.memory_bytes(0, 2, 4) == ratio.memory_bytes(0, 2, 4) - 2 * 100 + 7
    assert told.weight_bytes(0, 1) == ratio.weight_bytes(0, 1) - 2 * 100 + 7
    assert told.memory_bytes(1, 3, 4) == ratio.memory_bytes(1, 3, 4)
    assert told.memory_table(4)[0, 2] == told.memory_bytes(0, 2, 4)
    with pytest.raises(InvalidInput, match=r"optimizer_bytes: must be a finite number, 0 or more"):
        replace(first, optimizer_bytes=-1)


def test_a_split_backward_needs_room_for_two_more(
    make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    def room(index: int, span: tuple[int, int], spare: int, **changes: object) -> int:
        work = make_workload(micro_batch=2, process_bytes=0, splits_backward=True, **changes)
        spans = SpanCosts(make_model(6, parameter_bytes=0, saved_bytes=7, boundary_bytes=5), work)
        needed = spans.stage_memory_bytes(*span, (index, 3), 4) + spans.split_bytes(*span)
        assert spans.split_bytes(*span) == 2 * 2 * 14
        return spans.room_to_split(*span, (index, 3), 4, needed + spare)

    assert room(1, (2, 4), 0) == 4 + 2
    assert room(1, (2, 4), -1) == 0  # no memory for it
    assert room(0, (0, 2), 100) == 0  # nothing to send
    assert room(2, (4, 6), 0) == 1 + 2  # keeps those of one
    assert room(2, (4, 6), 0, schedule="gpipe", max_staleness=0, update_every=8) == 8 + 2


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


def test_a_hundred_thousand_units_of_gigabytes_are_added_to_the_byte(
    make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    count, weights, saved = 10**5, 4 * 2**31 + 4, 2**31 + 1
    costs = make_model(count, parameter_bytes=weights, saved_bytes=saved, flops=2.0**40, boundary_bytes=2**32)
    spans = SpanCosts(costs, make_workload(micro_batch=1, max_staleness=1, max_lag=1, process_bytes=7))
    assert spans.parameter_bytes(0, count) == count * weights
    assert spans.parameter_bytes(count - 1, count) == weights
    assert spans.forward_flops(0, count) == count * 2.0**40
    assert spans.memory_bytes(1, 50_001, window=3) == 7 + 8 * 50_000 * weights + 3 * 50_000 * saved
    assert spans.forward_bytes[count // 2] == 2**32
    assert len(spans.positions) <= MAX_POSITIONS + 1
    assert (spans.positions[0], spans.positions[-1]) == (0, count)


def test_a_stage_on_a_gpu_holds_averaging_and_pinned_blocks_in_its_machines_memory(
    make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    figures = {"parameter_bytes": 100, "boundary_bytes": 5, "boundary_gradient_bytes": 3}
    work = make_workload(micro_batch=2, max_lag=1, averaging_state_bytes_per_parameter_byte=1.0)
    spans = SpanCosts(make_model(4, **figures), work)
    averaging = (1 + 2 + 1) * 200
    assert spans.host_bytes(1, 3, window=6) == averaging + 2 * 2 * (6 * (5 + 3) + (5 + 3))
    assert spans.host_bytes(0, 2, window=6) == averaging + 2 * 2 * (6 * 5 + 3)  # no gradient leaves, no input crosses
    assert spans.host_bytes(2, 4, window=6) == averaging + 2 * 2 * (6 * 3 + 5)
    assert spans.host_bytes(0, 4, window=6) == 2 * averaging
