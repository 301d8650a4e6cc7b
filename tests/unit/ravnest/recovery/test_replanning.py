from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from cluster_planner import Node
from ravnest.recovery.replanning import WORTHWHILE, Replanning, lasts_s

FOR_EVER = float("inf")


def test_it_pays_once_as_much_was_forgone_as_the_stop_costs() -> None:
    replanning = Replanning(pause_s=20.0)
    paid = [at_s for at_s in range(100) if replanning.pays(5.0, 10.0, float(at_s), FOR_EVER)]
    assert paid[0] == 40  # 5 samples/s are forgone, and the stop costs 200


def test_what_is_little_better_is_left_alone_and_what_was_forgone_is_forgotten_when_it_is_made_up_for() -> None:
    replanning = Replanning(pause_s=20.0)
    assert not any(replanning.pays(10.0, 10.0 * WORTHWHILE, 100.0 * turn, FOR_EVER) for turn in range(9))
    assert not replanning.pays(5.0, 10.0, 1000.0, FOR_EVER)
    assert not replanning.pays(5.0, 10.0, 1030.0, FOR_EVER)
    assert not replanning.pays(10.0, 10.0, 1035.0, FOR_EVER)
    assert not replanning.pays(5.0, 10.0, 1045.0, FOR_EVER)


def test_a_run_that_ends_soon_is_left_alone() -> None:
    replanning = Replanning(pause_s=20.0)
    assert not any(replanning.pays(5.0, 10.0, float(at_s), 45.0 - at_s) for at_s in range(45))


def test_where_it_is_known_how_long_nodes_stay_it_pays_at_once_or_not() -> None:
    node = Node(name="a", flops_per_s=1.0, memory_bytes=1, up_bytes_per_s=1.0, down_bytes_per_s=1.0, mtbf_s=100.0)
    assert lasts_s([node, replace(node, mtbf_s=300.0)]) == 75.0
    assert lasts_s([node, replace(node, mtbf_s=None)]) is None
    replanning = Replanning(pause_s=20.0)
    assert not replanning.pays(5.0, 10.0, 0.0, FOR_EVER, lasts_s=39.0)
    assert replanning.pays(5.0, 10.0, 0.0, FOR_EVER, lasts_s=41.0)
    assert not replanning.pays(5.0, 10.0, 0.0, 39.0, lasts_s=41.0)


@given(
    st.lists(st.tuples(st.floats(0.0, 10.0), st.floats(0.0, 20.0)), min_size=1, max_size=60),
    st.floats(1.0, 50.0),
)
def test_no_more_than_the_costs_of_one_stop_and_one_step_are_forgone(
    rates: list[tuple[float, float]], pause_s: float
) -> None:
    replanning, forgone = Replanning(pause_s), 0.0
    for at_s, (making, more) in enumerate(rates):
        best = making + more
        if replanning.pays(making, best, float(at_s), FOR_EVER):
            assert forgone >= best * pause_s * (1 - 1e-9)
            return
        if best > WORTHWHILE * making:
            assert forgone <= best * pause_s * (1 + 1e-9)
        forgone = forgone + more if best > WORTHWHILE * making else 0.0
