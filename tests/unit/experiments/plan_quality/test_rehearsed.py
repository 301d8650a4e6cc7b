from dataclasses import replace

import pytest

from experiments.fidelity.achieved import Achieved, StageAchieved
from experiments.plan_quality.home_plans import plan_of
from experiments.plan_quality.homes import homes
from experiments.plan_quality.rehearsed import Row, explanations, part
from experiments.plan_quality.rehearsing import Made, made_in


def made(rate: float, late: float | None = 0.001) -> Made:
    stages = {"c0.s0": StageAchieved(0.8, {"input": 0.2}, late), "c0.s1": StageAchieved(0.99, {}, late)}
    return Made(Achieved(rate, None, stages), ((rate, 0.5),))


@pytest.fixture(scope="module")
def row(paced: None) -> Row:
    """A fleet of one cluster that does what was predicted."""
    home = homes(1)[0]
    plan = plan_of(home)
    rate = plan.predicted.samples_per_s
    return Row("h01", home.words, plan, made(rate, None), made(rate))


def claims(*rows: Row) -> dict[str, tuple[bool | None, str]]:
    return {claim.name: (claim.held, claim.measured) for claim in part(rows, 20.0).claims}


def test_all_is_held_where_steps_take_what_was_predicted(row: Row) -> None:
    found = claims(row, replace(row, name="h02"))
    assert found["predicted"][0] is True
    assert found["predicted"][1].startswith("2 of 2")
    assert found["kept up"] == (True, "2 of 2; 0.1% at worst (h01)")
    assert explanations([row]) == []


def test_a_slow_rehearsal_is_a_miss_of_the_prediction_where_the_simulator_saw_it_coming(row: Row) -> None:
    rate = row.plan.predicted.samples_per_s
    slow = replace(row, name="h02", rehearsed=made(0.8 * rate), simulated=made(0.81 * rate, None))
    assert slow.worst == pytest.approx(0.8)
    assert claims(row, slow)["predicted"] == (False, "1 of 2; -20.0% at worst (h02)")
    (line,) = explanations([row, slow])
    assert "h02: a step is predicted to take 0.800 of what it took" in line
    assert "the prediction that is off" in line


def test_it_is_the_rehearsals_where_the_simulator_did_not(row: Row) -> None:
    late = replace(row, rehearsed=made(0.8 * row.plan.predicted.samples_per_s, late=0.3))
    (line,) = explanations([late])
    assert "the simulator differs, too" in line
    assert "late by 30.0%" in line
    assert claims(late)["kept up"] == (False, "0 of 1; 30.0% at worst (h01)")


def test_a_failed_rehearsal_is_a_row_that_says_so(row: Row) -> None:
    failed = replace(row, name="h02", rehearsed="RuntimeError: not done after 240 s")
    assert claims(row, failed)["predicted"][0] is False
    assert "1 failed" in claims(row, failed)["predicted"][1]
    assert explanations([failed]) == ["h02: failed: RuntimeError: not done after 240 s"]
    assert claims(failed) == {
        "predicted": (False, "no rehearsal came to anything"),
        "kept up": (None, "no rehearsal has told it"),
    }
    assert [cells[0] for cells in part([row, failed], 20.0).tables[0].rows] == ["h01", "h02"]


def test_a_cluster_that_came_to_no_steady_state_is_refused() -> None:
    with pytest.raises(RuntimeError, match="steady"):
        made_in({"samples_per_s": {"achieved": None}, "clusters": []})
