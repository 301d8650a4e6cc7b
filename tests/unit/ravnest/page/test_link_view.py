from typing import Any

from cluster_planner import Plan
from ravnest.page.link_view import LinkViews

WHERE = {"c0.s0": "desk", "c0.s1": "laptop", "c1.s0": "tower", "c1.s1": "stranger"}


def views(plan: Plan, *rows: object) -> LinkViews:
    made = LinkViews(plan, WHERE.get)
    made.take({"kind": "links", "at_s": 1.0, "links": list(rows)})
    return made


def told(sender: str, receiver: str, **rates: float) -> dict[str, object]:
    return {"from": sender, "to": receiver, **rates}


def test_a_link_is_beside_what_a_flow_may_have_and_what_the_pipeline_counts_with(plan: Plan) -> None:
    row: Any = views(plan, told("c0.s0", "c0.s1", pipeline_bytes_per_s=5.0, hop_bytes_per_s=100.0)).rows()[0]
    assert (row["from_node"], row["to_node"]) == ("desk", "laptop")
    assert row["planned_bytes_per_s"] == plan.fleet.flow_bytes_per_s("desk", "laptop")
    assert (row["pipeline_bytes_per_s"], row["hop_bytes_per_s"], row["bulk_bytes_per_s"]) == (5.0, 100.0, None)
    unit = plan.costs.units[plan.clusters[0].stages[0].units[1] - 1]
    each = plan.predicted.clusters[0].samples_per_s / plan.workload.micro_batch
    assert row["planned_pipeline_bytes_per_s"] == plan.workload.activation_bytes(unit) * each


def test_the_link_whose_hop_is_slowest_beside_its_plan_comes_first_then_those_most_used(plan: Plan) -> None:
    rows: Any = views(
        plan,
        told("c0.s0", "c1.s0", bulk_bytes_per_s=1.0),
        told("c0.s1", "c1.s0", bulk_bytes_per_s=9.0),
        told("c1.s0", "c0.s1", hop_bytes_per_s=2e9),
        told("c1.s0", "c0.s0", hop_bytes_per_s=1.0),
    ).rows()
    assert [(row["from"], row["to"]) for row in rows[:2]] == [("c1.s0", "c0.s0"), ("c1.s0", "c0.s1")]
    assert {(row["from"], row["to"]) for row in rows[2:]} == {("c0.s0", "c1.s0"), ("c0.s1", "c1.s0")}


def test_newer_rates_replace_older_ones_and_others_stay(plan: Plan) -> None:
    links = views(plan, told("c0.s0", "c0.s1", pipeline_bytes_per_s=5.0, bulk_bytes_per_s=1.0))
    links.take({"kind": "links", "at_s": 2.0, "links": [told("c0.s0", "c0.s1", pipeline_bytes_per_s=6.0)]})
    (row,) = links.rows()
    assert (row["pipeline_bytes_per_s"], row["bulk_bytes_per_s"]) == (6.0, 1.0)


def test_what_does_not_fit_is_left_out(plan: Plan) -> None:
    links = views(plan, "no row", told("nobody", "c0.s0"), told("c0.s0", "c1.s1", hop_bytes_per_s=1.0))
    links.take({"kind": "links", "at_s": 1.0, "links": 5})
    (row,) = links.rows()
    assert (row["to_node"], row["planned_bytes_per_s"]) == ("stranger", None)
