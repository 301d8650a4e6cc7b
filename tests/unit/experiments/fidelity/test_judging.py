from dataclasses import replace

from experiments.fidelity.achieved import Achieved, StageAchieved, of_rehearsal
from experiments.fidelity.judging import Row, difference, explanations, part

STAGES = {
    "c0.s0": StageAchieved(0.50, {"window": 0.5}, 0.001),
    "c0.s1": StageAchieved(0.98, {"input": 0.02}, 0.004),
}
NEAR = Achieved(100.0, None, STAGES)
SLOWER = Achieved(
    90.0, 2.0, {**STAGES, "c0.s1": StageAchieved(0.88, {"input": 0.09, "lag": 0.03}, 0.06)}
)  # late, and it waited
ROW = Row("p01", "2 nodes", 104.0, "n1's speed", NEAR, replace(NEAR, samples_per_s=102.0), NEAR)


def claims(*rows: Row) -> dict[str, tuple[bool | None, str]]:
    return {claim.name: (claim.held, claim.measured) for claim in part(rows, "no lab", []).claims}


def test_all_claims_hold_where_all_rows_are_near() -> None:
    found = claims(ROW, replace(ROW, name="p02"))
    assert {name: held for name, (held, _) in found.items()} == dict.fromkeys(found, True)
    assert found["simulated"][1].startswith("2 of 2; -2.0% at worst")
    assert explanations([ROW]) == []


def test_a_miss_is_shown_and_explained_by_what_the_row_has_measured() -> None:
    row = replace(ROW, name="p02", rehearsed=SLOWER)
    found = claims(ROW, row)
    assert found["simulated"] == (False, "1 of 2; +11.1% at worst (p02)")
    assert found["rehearsed"] == (True, "2 of 2; -10.0% at worst (p02)")
    assert found["kept up"] == (False, "1 of 2; 6.0% at worst (p02)")
    (line,) = explanations([ROW, row])
    for word in ("p02: simulated 1.111 of rehearsed", "c0.s1 was late by 6.0%", "98.0% (simulated) and 88.0%"):
        assert word in line
    assert "waited for input 2.0% and 9.0%; waited for lag 0.0% and 3.0%" in line


def test_a_failed_run_is_a_row_and_no_claim_about_all_rows_holds() -> None:
    row = replace(ROW, name="p02", real="RuntimeError: not done after 150 s")
    found = claims(ROW, row)
    assert found["rehearsed"][0] is False
    assert "1 failed" in found["rehearsed"][1]
    assert explanations([row]) == ["p02: real: failed: RuntimeError: not done after 150 s"]
    assert [cells[0] for cells in part([ROW, row], "", []).tables[0].rows] == ["p01", "p02"]


def test_without_a_lab_what_is_real_is_not_measured_and_says_why() -> None:
    found = claims(replace(ROW, real=None))
    assert found["rehearsed"] == (None, "no lab")
    assert found["predicted"] == (None, "no lab")
    assert found["simulated"][0] is True


def test_rounds_are_compared_where_both_have_them() -> None:
    assert "a round took 1.00 s and 2.00 s" in difference("a", replace(NEAR, averaging_s=1.0), "b", SLOWER)


def test_the_picture_has_a_point_for_each_row_that_has_both() -> None:
    (panel,) = part([ROW, replace(ROW, real="failed")], "", []).panels
    assert {series.label: len(series.y) for series in panel.series} == {"simulated": 2, "real": 1, "predicted": 2}
    assert panel.diagonal


def test_a_rehearsal_is_read_from_its_json() -> None:
    document = {
        "samples_per_s": {"predicted": 1.0, "achieved": 90.0},
        "averaging_s": {"predicted": 1.0, "achieved": 2.0},
        "clusters": [
            {"stages": [{"stage": "c0.s0", "busy": {"achieved": 0.9}, "waiting": {"lag": 0.1}, "late_share": 0.01}]}
        ],
    }
    assert of_rehearsal(document) == Achieved(90.0, 2.0, {"c0.s0": StageAchieved(0.9, {"lag": 0.1}, 0.01)})
