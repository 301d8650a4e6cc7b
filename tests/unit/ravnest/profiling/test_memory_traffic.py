import pytest

from ravnest.profiling.memory_traffic import UnitKind, flops_per_byte, flops_per_s

KINDS = (
    UnitKind(count=1, flops=1e6, moved_bytes=4e8),  # an embedding
    UnitKind(count=32, flops=5e9, moved_bytes=3e7),
    UnitKind(count=32, flops=2e7, moved_bytes=9e7),  # a norm, or a depthwise convolution
    UnitKind(count=1, flops=8e9, moved_bytes=4e8),
)


def times(speed: float, traffic: float) -> list[float]:
    return [(kind.flops + traffic * kind.moved_bytes) / speed for kind in KINDS]


@pytest.mark.parametrize("traffic", [0.0, 3.0, 40.0])
def test_the_figure_that_made_the_times_is_found_again(traffic: float) -> None:
    found = flops_per_byte(KINDS, [times(2e10, traffic), times(7e10, traffic)])
    assert found == pytest.approx(traffic, rel=0.03)
    assert flops_per_s(KINDS, times(7e10, found), found) == pytest.approx(7e10)


def test_the_whole_model_takes_what_it_was_measured_to_take_whatever_the_figure_is() -> None:
    measured = [0.3, 0.2, 0.01, 0.5]
    whole_s = sum(kind.count * seconds for kind, seconds in zip(KINDS, measured, strict=True))
    for traffic in (0.0, 1.0, 100.0):
        speed = flops_per_s(KINDS, measured, traffic)
        told = [(kind.flops + traffic * kind.moved_bytes) / speed for kind in KINDS]
        told_s = sum(kind.count * seconds for kind, seconds in zip(KINDS, told, strict=True))
        assert told_s == pytest.approx(whole_s)


def test_where_all_units_are_alike_bytes_count_nothing() -> None:
    assert flops_per_byte(KINDS[:1], [[0.2]]) == 0.0


def test_the_nodes_together_decide() -> None:
    between = flops_per_byte(KINDS, [times(1e10, 5.0), times(1e10, 20.0)])
    assert 4.8 <= between <= 21.0
