from dataclasses import replace

from experiments.gpu.one_stage import Found, judge

FOUND = Found(
    device="a GPU",
    plain=500.0,
    planned=470.0,
    run=460.0,
    compute=0.97,
    averaging=0.02,
    planned_bytes=6 * 10**9,
    taken_bytes=5 * 10**9,
)


def held(found: Found) -> list[bool | None]:
    return [claim.held for claim in judge(found).claims]


def test_what_is_fast_as_planned_and_within_its_memory_holds() -> None:
    assert held(FOUND) == [True, True, True]


def test_each_claim_fails_on_its_own() -> None:
    assert held(replace(FOUND, plain=600.0)) == [False, True, True]
    assert held(replace(FOUND, planned=50.0)) == [True, False, True]
    assert held(replace(FOUND, planned=600.0)) == [True, False, True]
    assert held(replace(FOUND, taken_bytes=7 * 10**9)) == [True, True, False]


def test_memory_of_no_card_is_not_judged() -> None:
    assert held(replace(FOUND, taken_bytes=None)) == [True, True, None]
