import pytest

from ravnest.pipeline import StageShape, stage_name, stage_place


@pytest.mark.parametrize(
    "wrong",
    [{"index": 3}, {"index": -1}, {"update_every": 0}, {"max_staleness": -1}, {"window": 0}, {"max_lag": 0}],
)
def test_impossible_shapes_are_refused(wrong: dict[str, int]) -> None:
    right = {"stages": 3, "index": 0, "update_every": 2, "max_staleness": 1, "window": 4, "max_lag": 1}
    with pytest.raises(ValueError, match=r"must be at least|is not a stage"):
        StageShape(**{**right, **wrong})


@pytest.mark.parametrize("place", [("c0", 1), ("home.s", 12), ("a.s1", 0)])
def test_a_stages_name_tells_its_place(place: tuple[str, int]) -> None:
    assert stage_place(stage_name(*place)) == place
