"""Which cuts are offered."""

from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ravnest.splitting.cuts import Cut, RunningTotals, choose


def work(*pieces: tuple[int, int, int]) -> RunningTotals:
    """From (flops, parameter bytes, whether parameters are used) of each operation."""
    columns = zip(*pieces, strict=True)
    return RunningTotals(*(tuple(accumulate(column, initial=0)) for column in columns))


LINEAR, PLAIN = (100, 10, 1), (1, 0, 0)


def test_the_cheapest_position_between_two_uses_of_parameters_stays() -> None:
    model = work(LINEAR, PLAIN, PLAIN, LINEAR)
    assert choose([Cut(1, 30), Cut(2, 10), Cut(3, 20)], model) == (0, 2, 4)


def test_of_equally_cheap_positions_the_last_stays() -> None:
    assert choose([Cut(1, 10), Cut(2, 10), Cut(3, 10)], work(LINEAR, PLAIN, PLAIN, LINEAR)) == (0, 3, 4)


def test_no_unit_without_parameters_at_either_end() -> None:
    model = work(PLAIN, LINEAR, LINEAR, PLAIN)
    assert choose([Cut(1, 1), Cut(2, 50), Cut(3, 1)], model) == (0, 2, 4)


def test_a_cut_goes_where_a_much_cheaper_one_is_near() -> None:
    near, far = (1, 0, 1), (50, 10, 1)
    model = work(far, near, far, far)
    assert choose([Cut(1, 10), Cut(2, 20), Cut(3, 20)], model) == (0, 1, 3, 4)


def test_a_cut_stays_where_the_cheaper_one_is_not_much_cheaper_or_not_near() -> None:
    near, far = (1, 0, 1), (50, 10, 1)
    assert choose([Cut(1, 10), Cut(2, 14), Cut(3, 20)], work(far, near, far, far)) == (0, 1, 2, 3, 4)
    assert choose([Cut(1, 1), Cut(2, 100)], work(far, far, far)) == (0, 1, 2, 3)


def test_cuts_with_hardly_anything_between_them_become_one() -> None:
    tiny, large = (1, 0, 1), (2000, 10, 1)
    assert choose([Cut(1, 10), Cut(2, 9)], work(large, tiny, large)) == (0, 2, 3)
    assert choose([Cut(1, 9), Cut(2, 10)], work(large, tiny, large)) == (0, 1, 3)


def test_a_deep_transformer_is_cut_at_its_residual_joints() -> None:
    block = [(1, 1, 1), (40, 40, 1), (20, 20, 1), (1, 1, 1), (80, 80, 1), (80, 80, 1)]
    sent = [2, 4, 1, 2, 5, 1]
    cuts = [Cut(6 * block_number + i + 1, sent[i]) for block_number in range(60) for i in range(6)][:-1]
    positions = choose(cuts, work(*(block * 60)))
    assert positions == (0, *(position for b in range(60) for position in (6 * b + 3, 6 * b + 6)))


def test_the_cheapest_neighbours_are_merged_until_there_are_few_enough() -> None:
    model = work((100, 1, 1), (10, 1, 1), (11, 1, 1), (100, 1, 1), (100, 1, 1))
    assert choose([Cut(i, 10) for i in range(1, 5)], model, most_units=4) == (0, 1, 3, 4, 5)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.booleans()), min_size=1, max_size=30),
    st.data(),
)
def test_units_always_cover_the_model_and_hold_parameters(
    pieces: list[tuple[int, int, bool]], data: st.DataObject
) -> None:
    model = work(*((flops, size, int(uses)) for flops, size, uses in pieces))
    admissible = [p for p in range(1, len(pieces)) if data.draw(st.booleans())]
    most = data.draw(st.integers(1, 8))
    positions = choose([Cut(p, data.draw(st.integers(0, 9))) for p in admissible], model, most)
    assert (positions[0], positions[-1]) == (0, len(pieces))
    assert list(positions) == sorted(set(positions))
    assert set(positions[1:-1]) <= set(admissible)
    assert len(positions) - 1 <= most
    if len(positions) > 2:
        uses = model.parameter_uses
        assert all(uses[end] > uses[start] for start, end in pairwise(positions))


def test_share_counts_work_or_parameters_whichever_is_more() -> None:
    assert work((10, 90, 1), (90, 10, 1)).share(0, 1) == pytest.approx(0.9)
    assert work((0, 0, 1), (0, 0, 1)).share(0, 1) == 0.0
