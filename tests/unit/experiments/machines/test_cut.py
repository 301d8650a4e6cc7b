from dataclasses import replace

from experiments.machines.cut import LOOPED, ONCE, Cuts, judge

FOUND = Cuts(
    stages_s={LOOPED: 29.0, ONCE: 30.0},
    went_on=True,
    ray_lived=[LOOPED, ONCE],
    back_s={LOOPED: 28.0, ONCE: None},
    trains_again=True,
    one_cluster_s=30.0,
)


def held(found: Cuts) -> list[bool | None]:
    return [claim.held for claim in judge(found).claims]


def test_each_claim_falls_with_what_it_rests_on() -> None:
    assert held(FOUND) == [True, True, True]
    assert held(replace(FOUND, stages_s={LOOPED: 29.0, ONCE: None})) == [False, True, True]
    assert held(replace(FOUND, one_cluster_s=61.0)) == [False, True, True]
    assert held(replace(FOUND, went_on=False)) == [True, False, True]
    assert held(replace(FOUND, back_s={LOOPED: None, ONCE: 5.0})) == [True, True, False]
    assert held(replace(FOUND, trains_again=False)) == [True, True, False]


def test_a_ray_that_stays_away_is_told_and_fails_nothing() -> None:
    (table,) = judge(FOUND).tables
    assert [row[0] for row in table.rows] == [LOOPED, ONCE]
    assert [row[-1] for row in table.rows] == ["28 s", "not seen"]
