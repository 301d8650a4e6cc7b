import pytest

from experiments.families import families
from experiments.families.judged import has_learnt, learnt, part_of, verdict_on
from experiments.families.trial import Family, Outcome

EQUAL = Outcome(units=4, stages=(2, 2), initial=1.4, reported=0.5, recomputed=0.5, plain=(0.5, 0.4, 0.3), exact=1e-6)


def family(name: str, refused: str = "") -> Family:
    return Family(name, {}, {}, refused=refused)


def outcome(**changes: object) -> Outcome:
    return Outcome(**{**vars(EQUAL), **changes})


def test_a_family_is_equal_only_if_all_three_comparisons_hold() -> None:
    assert verdict_on(family("a"), EQUAL) == "equal"
    assert verdict_on(family("a"), outcome(recomputed=0.51)) == "not reported"
    assert verdict_on(family("a"), outcome(exact=0.3)) == "not exact"
    assert verdict_on(family("a"), outcome(reported=0.62, recomputed=0.62)) == "not learnt"
    assert verdict_on(family("a", "numpy"), EQUAL) == "not not refused"


@pytest.mark.parametrize(
    ("plain", "reported", "held"),
    [
        ((0.5, 0.4, 0.3), 0.59, True),  # two spreads of 0.1
        ((0.4, 0.4, 0.4), 0.44, True),  # 5 % of a fall of 1
        ((0.4, 0.4, 0.4), 0.46, False),
        ((1.2, 0.4, -0.4), 0.95, False),  # within a spread, and not half of the fall
        ((0.5, 0.4, 0.3), float("nan"), False),
    ],
)
def test_a_run_may_end_above_plain_loops_by_what_their_seeds_make(
    plain: tuple[float, ...], reported: float, held: bool
) -> None:
    assert has_learnt(family("a"), outcome(plain=plain, reported=reported)) is held


def test_what_has_fallen_is_told_in_parts_of_the_plain_loops_fall() -> None:
    assert learnt(EQUAL) == pytest.approx(0.9)


def test_claims_name_the_families_that_they_do_not_hold_for() -> None:
    found = [
        (family("good"), EQUAL),
        (family("wrong"), outcome(exact=0.3, recomputed=0.6)),
        (family("broken"), Outcome(failed="KeyError: x")),
        (family("odd", "numpy"), Outcome(refused="model: draws from numpy")),
        (family("missed", "numpy"), EQUAL),
        (family("whole"), Outcome(refused="one unit")),
    ]
    part = part_of("vectors", "Vectors", found)
    claims = {claim.name: claim for claim in part.claims}
    assert {name: claim.held for name, claim in claims.items()} == dict.fromkeys(claims, False)
    assert claims["exact"].measured == "2 of 4; not wrong, broken"
    assert claims["reported"].measured == "2 of 4; not wrong, broken"
    assert claims["refused"].measured == "1 of 2; not missed"
    assert any("whole" in note for note in part.notes)
    assert [row[0] for row in part.tables[0].rows] == ["good", "wrong", "broken", "odd", "missed", "whole"]


def test_a_part_in_which_nothing_is_trained_measures_only_what_it_can() -> None:
    part = part_of("refusals", "Refusals", [(family("odd", "numpy"), Outcome(refused="model: draws from numpy"))])
    assert {claim.name: claim.held for claim in part.claims} == {
        "reported": None,
        "exact": None,
        "refused": True,
        "learnt": None,
    }


def test_there_are_fifty_families_of_models_and_ten_kinds_of_data() -> None:
    names = [family.name for family in (*families.MODELS, *families.DATA)]
    assert len(names) == len(set(names))
    assert len(families.MODELS) >= 50
    assert len(families.DATA) >= 10
    assert set(families.QUICK) <= set(names)
