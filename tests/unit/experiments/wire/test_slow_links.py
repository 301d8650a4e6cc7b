from dataclasses import replace

import pytest

from experiments.fidelity.achieved import Achieved, StageAchieved
from experiments.wire.slow_links import BASE, FORMS, REREADS, Extent, Row, losses_above, part_of, plan_of
from ravnest.simulator import simulate

EXTENT = Extent()


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    job_file = tmp_path_factory.mktemp("slow_links") / "job.yaml"
    return {form: plan_of(FORMS[form], job_file, EXTENT) for form in (BASE, "an eighth, int8", REREADS)}


def test_stages_are_cut_behind_blocks_and_where_a_bottleneck_is_narrow(plans):
    ends = {
        form: [plan.costs.units[stage.units[1] - 1] for stage in plan.clusters[0].stages[:-1]]
        for form, plan in plans.items()
    }
    assert [unit.name for unit in ends[BASE]] == [f"blocks.{number}.perceptron.2" for number in range(3)]
    assert {unit.boundary_bytes for unit in ends[BASE]} == {4 * 32 * 64}
    assert {unit.boundary_bytes for unit in ends["an eighth, int8"]} == {4 * 32 * 8}
    assert {unit.boundary_bytes for unit in ends[REREADS]} == {4 * 32 * 7 + 32}  # and an id for each, of a byte
    assert {unit.boundary_gradient_bytes for unit in ends[REREADS]} == {4 * 32 * 7}
    assert FORMS[REREADS].alike, "as a job's bottlenecks begin: else the loss beside it is another one's"


def test_slower_forms_are_rehearsed_longer(plans):
    micro_batch_s = 16 / plans[BASE].predicted.samples_per_s
    assert EXTENT.seconds_of(plans[BASE]) == pytest.approx(300 * micro_batch_s / EXTENT.speed)
    assert EXTENT.seconds_of(plans[REREADS]) == EXTENT.seconds
    assert Extent(seconds=12.0, micro_batches=0).seconds_of(plans[BASE]) == 12.0


def test_an_uplink_of_5_mbit_sets_the_pace_and_the_simulator_agrees(plans):
    plan = plans[BASE]
    crossing = 32 * 64 * 65 / 64  # bytes of one sample, with its scales; a stage within sends two of them
    assert plan.predicted.samples_per_s == pytest.approx(5e6 / 8 / (2 * crossing), rel=1e-3)
    assert "uplink" in plan.predicted.bottleneck
    assert simulate(plan, seconds=30.0).samples_per_s == pytest.approx(plan.predicted.samples_per_s, rel=0.05)


def test_of_forms_within_one_percent_and_of_all_the_fastest_is_judged(plans):
    def row(form: str, times: float) -> Row:
        rate = times * plans[BASE].predicted.samples_per_s
        plan = replace(plans[BASE], predicted=replace(plans[BASE].predicted, samples_per_s=rate))
        stages = {"c0.s0": StageAchieved(0.02, {}, 3.0), "c0.s1": StageAchieved(0.05, {}, 4.0)}
        return Row(form, plan, rate, Achieved(rate, None, stages))

    above = {BASE: 0.0, "int4": 0.009, "an eighth, int8": 0.084}
    rows = [row(BASE, 1.0), row("int4", 1.9), row("an eighth, int8", 7.9), row(REREADS, 15.0)]
    part = part_of(rows, above, EXTENT)
    claims = {claim.name: claim for claim in part.claims}
    assert {name: claim.held for name, claim in claims.items()} == {
        "within 1%": False,
        "at any loss": True,
        "predicted": True,
    }
    assert claims["within 1%"].measured == "int4: 1.90 times"
    assert [line[2] for line in part.tables[0].rows] == [0.0, 0.009, 0.084, None]
    assert [line[-1] for line in part.tables[0].rows] == ["5.0%"] * 4


def test_losses_are_those_on_characters_of_both_parts():
    tables = {
        "cuts": [["digits", "int4", 7.5, 0.1, 0.5, None], ["characters", "int4", 7.5, 2.1, 0.01, 0.0]],
        "bottlenecks": [["characters", "a half", 2, 2.2, 0.04, 0.0]],
    }
    document = {"parts": {name: {"tables": [{"rows": rows}]} for name, rows in tables.items()}}
    assert losses_above(document) == {"int4": 0.01, "a half": 0.04}
