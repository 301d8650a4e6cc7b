from cluster_planner import Plan
from ravnest.page.plan_facts import predictions_of, stages_of


def test_each_stage_has_its_node_its_units_and_what_averaging_makes_it_send(plan: Plan) -> None:
    found = stages_of(plan)
    assert [(each.stage, each.node, each.units) for each in found["c0"]] == [
        ("c0.s0", "desk", (0, 2)),
        ("c0.s1", "laptop", (2, 5)),
    ]
    # A ring of two: each sends its half of the vector once to reduce and once to gather, 1,000 bytes a unit.
    assert [each.round_bytes for each in found["c1"]] == [3000, 2000]


def test_a_larger_window_needs_more_memory(plan: Plan) -> None:
    first = stages_of(plan)["c0"][0]
    assert 0 < first.tensor_bytes(5) < first.tensor_bytes(9)


def test_predictions_are_told(plan: Plan) -> None:
    told = predictions_of(plan)
    assert told["predicted"]["samples_per_s"] == 160.0
    assert (told["average_every"], told["nodes"]) == (512, 5)
