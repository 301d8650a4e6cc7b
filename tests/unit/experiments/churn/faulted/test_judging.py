from typing import Any

from experiments.churn.faulted.judging import WANTED, judged


def fault(number: int, **changes: Any) -> dict[str, Any]:
    said = {"number": number, "kind": "kill", "moment": "training", "hung": False, "ended": None, "seconds": 12.0}
    return said | {"lost": [64], "silent_s": [1.0], "events": []} | changes


def held(records: list[dict[str, Any]]) -> dict[str, bool | None]:
    return {claim.name: claim.held for claim in judged(records, quick=False, note="so").claims}


ALONE = {"undisturbed": True, "loss": 2.0}
END = {"end": 0, "hung": False, "loss": 2.01}


def test_claims_hold_only_of_the_whole_experiment_and_fail_at_once() -> None:
    some = [ALONE, fault(0), END]
    assert set(held(some).values()) == {None}
    assert set(held([ALONE, *(fault(n) for n in range(WANTED)), END]).values()) == {True}
    assert held([*some, fault(1, hung=True)])["none hung"] is False
    assert held([*some, fault(1, ended="stage died")])["none ended"] is False
    assert held([*some, {"end": 1, "hung": False, "loss": 2.05}])["none corrupt"] is False
    assert held([*some, {"end": 1, "hung": False, "code": 1}])["none corrupt"] is False
    assert held([*some, fault(1, lost=[129])])["samples"] is False
    assert held([*some, fault(1, lost=[65])])["of one cluster"] is False
    assert held([*some, fault(1, lost=[1856], made_again=[0])])["of one cluster"] is None
    assert held([*some, fault(1, silent_s=[5.5])])["at once"] is False
    assert held([*some, fault(1, kind="freeze", silent_s=[20.5])])["at once"] is None


def test_each_that_hung_or_ended_is_named_and_seconds_stand_by_kind_and_moment() -> None:
    part = judged(
        [ALONE, fault(0), fault(1, seconds=20.0), fault(2, kind="cut", hung=True, target="c0.s1"), END],
        quick=False,
        note="so",
    )
    assert part.notes == ["so", "fault 2 (cut at training, c0.s1) hung the run."]
    assert part.tables[0].rows[0][:3] == ["kill", None, "16.0 (20.0, 2)"]


def test_what_was_made_after_a_checkpoint_is_counted_where_runs_told_it() -> None:
    (row, *_), (again, *_) = (
        judged(faults, quick=True, note="").tables[1].rows
        for faults in ([fault(0)], [fault(0), fault(0, since_checkpoint=[700, 20])])
    )
    assert (row[6], again[6]) == (None, 720)
