from collections.abc import Collection, Mapping
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from ravnest.experts.beam_search import MOST_RETURNS, BeamSearch
from ravnest.experts.grid import Expert


def behind(hosted: Collection[Expert]) -> Mapping[Expert, set[int]]:
    found: dict[Expert, set[int]] = {}
    for expert in hosted:
        for length in range(len(expert)):
            found.setdefault(expert[:length], set()).add(expert[length])
    return found


def search(hosted: Collection[Expert], *samples: list[list[float]], width: int = 2, best: int = 2, without=None):
    """The experts found, and the prefixes asked for, step by step."""
    beam, asked = BeamSearch(samples, width=width, best=best, without=without), []
    while beam.wanted:
        asked.append(set(beam.wanted))
        beam.arrived(behind(hosted))
    return beam.found(), asked


FULL = list(product(range(3), range(3)))


def test_the_best_experts_are_found_by_one_step_for_each_dimension() -> None:
    found, asked = search(FULL, [[0.0, 2.0, 1.0], [1.0, 0.0, 3.0]])
    assert found == [[(1, 2), (2, 2)]]
    assert asked == [{()}, {(1,), (2,)}]


def test_samples_are_searched_for_together() -> None:
    first, second = [[9.0, 0.0, 0.0], [0.0, 0.0, 1.0]], [[0.0, 0.0, 9.0], [1.0, 0.0, 0.0]]
    found, asked = search(FULL, first, second, width=1, best=1)
    assert found == [[(0, 2)], [(2, 0)]]
    assert asked == [{()}, {(0,), (2,)}]


def test_it_goes_back_when_too_little_is_hosted() -> None:
    scores = [[3.0, 2.0, 1.0], [0.0, 0.0, 0.0]]
    found, asked = search([(0, 1), (2, 2)], scores, width=1)
    assert found == [[(0, 1), (2, 2)]]
    assert asked == [{()}, {(0,)}, {(2,)}]


def test_experts_that_a_sample_cannot_use_are_left_out() -> None:
    scores = [[3.0, 2.0, 1.0], [3.0, 2.5, 1.0]]
    found, _ = search(FULL, scores, scores, best=1, without=[{(0, 0)}, set()])
    assert found == [[(0, 1)], [(0, 0)]]


def test_nothing_hosted_is_nothing_found() -> None:
    assert search([], [[1.0], [1.0]]) == ([[]], [{()}])


def test_the_steps_back_are_bounded() -> None:
    scores = [[float(-one) for one in range(100)], [0.0]]
    beam, steps = BeamSearch([scores], width=1, best=1), 0
    while beam.wanted:
        steps += 1
        beam.arrived({(): set(range(100))})  # announced, but nothing is behind any of them
    assert steps <= MOST_RETURNS + 2
    assert beam.found() == [[]]


@given(
    st.sets(st.tuples(*[st.integers(0, 3)] * 3)),
    st.lists(st.lists(st.floats(-5, 5), min_size=4, max_size=4), min_size=3, max_size=3),
)
def test_with_a_wide_beam_it_is_the_exact_best(hosted: set[Expert], scores: list[list[float]]) -> None:
    (found,), _ = search(hosted, scores, width=64, best=3)
    sums = {expert: sum(part[one] for part, one in zip(scores, expert, strict=True)) for expert in hosted}
    assert len(found) == min(3, len(hosted))
    assert sorted(sums[one] for one in found) == sorted(sums.values())[-3:]
