import pytest

from experiments.scale.whole_fleet import LEAST_OF_ALL, Asked, Seen, part_of, plan_of, seen


def test_the_longest_round_is_set_against_the_time_between_openings() -> None:
    came = Seen((100.0, 200.0), (130.0, 245.0), samples_per_s=10.0, events=5, wall_s=1.0)
    assert (came.longest_s, came.between_s, came.part) == (45.0, 100.0, 0.45)
    third_is_open = Seen((100.0, 200.0, 290.0), (130.0, 295.0), samples_per_s=10.0, events=5, wall_s=1.0)
    assert (third_is_open.longest_s, third_is_open.between_s) == (95.0, 90.0)


def test_two_rounds_end_while_all_train_and_shorter_forms_make_them_shorter() -> None:
    long, short = (seen(plan_of(Asked(20, 5, *forms))) for forms in (("float32", "float32"), LEAST_OF_ALL))
    for came in (long, short):
        assert len(came.committed_s) == 2
        assert came.between_s > 0
    assert short.longest_s < long.longest_s
    assert short.part < 1 < long.part


@pytest.mark.parametrize(("committed_s", "held"), [(199.0, True), (201.0, False)])
def test_the_last_row_is_judged(committed_s: float, held: bool) -> None:
    small, large = Asked(10, 5, "int8", "int8"), Asked(20, 5, *LEAST_OF_ALL)
    bad = Seen((100.0, 200.0), (350.0, 450.0), 1.0, 1, 1.0)
    came = Seen((100.0, 200.0), (committed_s, 250.0), 1.0, 1, 1.0)
    rows = [(small, plan_of(small), bad), (large, plan_of(large), came)]
    assert [claim.held for claim in part_of(rows, judged=True).claims] == [held]
    assert [claim.held for claim in part_of(rows, judged=False).claims] == [None]
    assert len(part_of(rows, judged=True).tables[0].rows) == 2
