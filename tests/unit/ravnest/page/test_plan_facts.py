import pytest

from cluster_planner import Plan
from ravnest.page.plan_facts import predictions_of, stages_of
from ravnest.stage import messages as m
from tests.support.local import in_two_regions, local_run, setups_of, tiny_job


def test_each_stage_has_its_node_its_units_and_what_averaging_makes_it_send(plan: Plan) -> None:
    found = stages_of(plan)
    assert [(each.stage, each.node, each.units) for each in found["c0"]] == [
        ("c0.s0", "desk", (0, 2)),
        ("c0.s1", "laptop", (2, 5)),
    ]
    # A ring of two: each sends its half of the vector once to reduce and once to gather, 1,000 bytes a unit.
    assert [each.round_bytes for each in found["c1"]] == [3000, 2000]


@pytest.mark.parametrize(
    ("parts", "averaging"),
    [
        ((2, 3), {}),
        ((2, 3, 1, 2), {"wire": "bfloat16"}),  # small vectors, which four members exchange directly
        ((1, 2, 2), {"robust": "trimmed_mean"}),
        ((1, 2, 1, 1, 1), {"hierarchical": True}),
    ],
)
def test_what_comes_in_a_round_of_a_run_is_what_was_planned(
    parts: tuple[int, ...], averaging: dict[str, object]
) -> None:
    job = tiny_job(averaging=averaging)
    changed = in_two_regions if "hierarchical" in averaging else lambda plan: plan
    setups, plan = setups_of(job, parts=parts, changed=changed)
    grouped = [segment.progress.groups for setup in setups.values() for segment in setup.segments]
    assert all(grouped) == ("hierarchical" in averaging)
    run, planned = local_run(job, parts=parts, changed=changed), stages_of(plan)
    came: dict[int, dict[str, int]] = {}
    note = run.note

    def noted(sender: str, message: object, tensors: object) -> None:
        if isinstance(message, m.RingFinishedMessage):
            of_round = came.setdefault(message.round, {})
            of_round[sender] = of_round.get(sender, 0) + message.received_bytes
        note(sender, message, tensors)  # type: ignore[arg-type]

    run.note = noted  # type: ignore[method-assign, assignment]
    run.run()
    expected = {stage.stage: stage.round_bytes for each in planned.values() for stage in each}
    assert min(expected.values()) > 0
    assert came
    # Cells of a ring of rings differ by a number where a vector cannot be divided evenly.
    within = pytest.approx(expected, abs=64 if all(grouped) else 0)
    assert [each for each in came.values() if each != within] == []


def test_a_larger_window_needs_more_memory(plan: Plan) -> None:
    first = stages_of(plan)["c0"][0]
    assert 0 < first.tensor_bytes(5) < first.tensor_bytes(9)


def test_predictions_are_told(plan: Plan) -> None:
    told = predictions_of(plan)
    assert told["predicted"]["samples_per_s"] == 160.0
    assert (told["average_every"], told["nodes"]) == (512, 5)
