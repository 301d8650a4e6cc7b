import pytest

from cluster_planner.segments import common_refinement, holder


def test_segments_end_wherever_any_cluster_cuts() -> None:
    assert common_refinement([[(0, 5), (5, 9)], [(0, 3), (3, 5), (5, 9)]]) == ((0, 3), (3, 5), (5, 9))
    assert common_refinement([[(0, 4)]]) == ((0, 4),)


def test_each_segment_is_held_by_one_stage() -> None:
    spans = [(0, 3), (3, 9)]
    assert [holder(spans, s) for s in ((0, 3), (3, 5), (5, 9))] == [0, 1, 1]
    with pytest.raises(ValueError, match="no span"):
        holder(spans, (2, 4))
