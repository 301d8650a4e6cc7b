from cluster_planner import Fleet, Node
from ravnest.profiling.estimates import MeasuredFigure
from ravnest.profiling.memory_traffic import UnitKind
from ravnest.profiling.profile import known_traffic, with_traffic
from ravnest.profiling.speed import Speed

KINDS = (UnitKind(1, 1e9, 1e6), UnitKind(2, 1e6, 1e8))
TIMES = (0.10005, 0.0051)
"""At 10 GFLOP/s, and 0.5 FLOPs a byte."""


def speed(seconds: tuple[float, ...]) -> Speed:
    return Speed(MeasuredFigure(1.0, 0.25), seconds[0] + 2 * seconds[1], 1, 4, seconds)


def test_speeds_are_told_with_what_a_byte_was_measured_to_take() -> None:
    traffic, speeds = with_traffic(KINDS, {"a": speed(TIMES), "b": speed(tuple(each / 2 for each in TIMES))})
    assert 0.48 < traffic < 0.52
    assert abs(speeds["a"].flops_per_s.value / 1e10 - 1) < 0.01
    assert abs(speeds["b"].flops_per_s.value / 2e10 - 1) < 0.01
    assert speeds["a"].flops_per_s.spread == 0.25


def test_beside_other_machines_their_figure_counts() -> None:
    traffic, speeds = with_traffic(KINDS, {"a": speed(TIMES)}, 0.0)
    assert traffic == 0.0
    assert abs(speeds["a"].flops_per_s.value - 1.002e9 / 0.11025) < 1.0
    assert with_traffic(KINDS, {}) == (0.0, {})


def test_the_figure_stays_while_the_speed_of_a_node_goes_with_it() -> None:
    rates = {"up_bytes_per_s": 1e7, "down_bytes_per_s": 1e7}
    nodes = [Node(name=name, flops_per_s=1e12, memory_bytes=10**10, **rates) for name in ("a", "b")]
    known = Fleet(tuple(nodes), flops_per_byte=3.0)
    assert known_traffic(known, ["a"]) == 3.0
    assert known_traffic(known, ["a", "b", "c"]) is None
    assert known_traffic(None, ["a"]) is None
