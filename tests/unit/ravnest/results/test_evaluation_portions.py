from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from cluster_planner import Unit
from ravnest.results.evaluation import batches_at_once, spans_within


def unit(parameter_bytes: int, boundary_bytes: int = 10, borrowed_bytes: int = 0) -> Unit:
    return Unit(
        name="u",
        flops=1.0,
        parameter_bytes=parameter_bytes,
        saved_bytes=0,
        boundary_bytes=boundary_bytes,
        boundary_gradient_bytes=0,
        borrowed_bytes=borrowed_bytes,
    )


def units(*parameter_bytes: int) -> list[Unit]:
    return [unit(size) for size in parameter_bytes]


def test_stages_that_fit_stay_as_they_are_and_others_are_cut_between_units() -> None:
    model = units(3, 3, 3, 3, 8, 1)
    assert spans_within(model, [(0, 4), (4, 6)], 12) == [(0, 4), (4, 6)]
    assert spans_within(model, [(0, 4), (4, 6)], 8) == [(0, 2), (2, 4), (4, 5), (5, 6)]
    assert spans_within(model, [(0, 6)], 0) == [(n, n + 1) for n in range(6)]


@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=12),
    st.sets(st.integers(1, 11)),
    st.integers(0, 40),
)
def test_spans_cover_the_model_in_order_keep_the_stages_cuts_and_fit(
    sizes: list[int], cuts: set[int], most: int
) -> None:
    model = units(*sizes)
    edges = [0, *sorted(cut for cut in cuts if cut < len(sizes)), len(sizes)]
    stages = list(pairwise(edges))
    spans = spans_within(model, stages, most)
    assert [begin for begin, _ in spans] == [0, *(end for _, end in spans[:-1])]
    assert spans[-1][1] == len(sizes)
    assert {begin for begin, _ in stages} <= {begin for begin, _ in spans}
    assert all(end - begin == 1 or sum(sizes[begin:end]) <= most for begin, end in spans)


def test_borrowed_weights_count() -> None:
    model = [unit(4), unit(1, borrowed_bytes=4)]
    assert spans_within(model, [(0, 2)], 8) == [(0, 1), (1, 2)]


def test_batches_wait_between_spans_within_a_limit() -> None:
    model = units(1, 1, 1)
    spans = [(0, 1), (1, 3)]
    assert batches_at_once(model, spans, samples=4, batches=9, most_bytes=120) == 3
    assert batches_at_once(model, spans, samples=4, batches=2, most_bytes=120) == 2
    assert batches_at_once(model, spans, samples=4, batches=9, most_bytes=1) == 1
    assert batches_at_once(model, [(0, 3)], samples=4, batches=9, most_bytes=1) == 9  # nothing waits
