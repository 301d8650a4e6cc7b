import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

from rich.console import Console

from cluster_planner import Constraints, Plan, SingleNodePlan, Spare, Stage, format_rate
from ravnest.cli.views.plan import alone_words, plan_document, show_plan, whole_models


def test_a_person_reads_who_does_what_and_why(plan: Plan) -> None:
    out = StringIO()
    show_plan(plan, Console(file=out, width=110))
    text = out.getvalue()
    assert "5 nodes · 2 clusters · 5 units, 5 kB of weights" in text
    for words in (
        "c0: 100 samples/s, window 5, round trip 250 ms",
        "[2, 5)",
        "block2 … block4",
        "250 MB of 1 GB",
        "limited by: compute of its slowest node",
        "tablet → laptop",
        "spare: old-phone, its 0.1 GB hold no unit",
        "predicted   160 samples/s",
        "worth       152: its samples/s, less 5% that staleness and rarer averaging are assumed",
        "time on uplink and downlink, averaging included",
        "a round of 512 samples: 750 ms in training",
        "laptop computes",
        "a faster laptop would help most",
    ):
        assert words in text


def test_spares_for_the_same_reason_are_one_line(plan: Plan) -> None:
    many = tuple(Spare(f"g{i:02}", "no cluster gains") for i in range(42))
    out = StringIO()
    show_plan(replace(plan, spares=(*many[:1], *plan.spares, *many[1:])), Console(file=out, width=110))
    lines = [line for line in out.getvalue().splitlines() if line.startswith("spare: ")]
    assert lines[0] == "spare: g00, g01, g02 and 39 more, of each: no cluster gains"
    assert len(lines) == 1 + len(plan.spares)


def test_a_stage_that_recomputes_is_told_with_what_that_means(plan: Plan) -> None:
    assert "twice forward" not in shown(plan)
    first = plan.clusters[0]
    stages = (replace(first.stages[0], recomputes=True), *first.stages[1:])
    text = shown(replace(plan, clusters=(replace(first, stages=stages), *plan.clusters[1:])))
    assert ") twice forward" in text
    assert "twice forward: the stage keeps no activations" in " ".join(text.split())


def test_a_round_is_told_with_the_samples_that_it_has(plan: Plan) -> None:
    short = replace(plan, workload=replace(plan.workload, average_every=1))
    least = round(short.workload.round_samples(len(plan.clusters)))
    assert least > 1
    assert f"a round of {least} samples: 750 ms in training, 500 ms on idle links; one every " in shown(short)
    waits = replace(short, predicted=replace(short.predicted, loaded_averaging_s=None))
    assert f"a round of {least} samples: 500 ms on idle links; one every " in shown(waits)


def test_a_long_name_goes_on_in_the_next_line_and_cuts_no_column_off(plan: Plan) -> None:
    name = "the-raspberry-pi-in-the-cellar"
    first = replace(
        plan.clusters[0], stages=(replace(plan.clusters[0].stages[0], node=name), *plan.clusters[0].stages[1:])
    )
    nodes = tuple(replace(node, name=name) if node.name == "desk" else node for node in plan.fleet.nodes)
    out = StringIO()
    long = replace(plan, clusters=(first, *plan.clusters[1:]), fleet=replace(plan.fleet, nodes=nodes))
    show_plan(long, Console(file=out, width=80))
    lines = out.getvalue().splitlines()
    (row,) = (line for line in lines if line.startswith("  0 ") and "GB" in line and "the-" in line)
    assert row.endswith("250 MB of 1 GB")
    assert "stage" in lines[3]
    assert "…" not in out.getvalue()


def test_the_document_is_plain_json(plan: Plan) -> None:
    document = plan_document(plan, Path("plan.yaml"), Path("plan.png"))
    read = json.loads(json.dumps(document, allow_nan=False))
    assert read["plan"] == "plan.yaml"
    assert read["clusters"][1]["stages"][0] == {"node": "tower", "units": [0, 3], "recomputes": False}
    assert read["rings"][2]["members"] == [["c1", 1], ["c0", 1]]
    assert read["predicted"]["clusters"][0]["stages"][1]["occupancy_s"] == 0.04


def with_lone_stages(plan: Plan, *lone: int) -> Plan:
    """`plan`, whose clusters with these numbers are one stage each, on their first node."""
    whole = (0, len(plan.costs.units))
    clusters = tuple(
        replace(cluster, stages=(Stage(cluster.stages[0].node, whole),)) if number in lone else cluster
        for number, cluster in enumerate(plan.clusters)
    )
    return replace(plan, clusters=clusters)


def test_machines_that_hold_the_whole_model_are_named_with_what_it_means(plan: Plan) -> None:
    assert whole_models(plan) is None
    desk, tower = (cluster.stages[0].node for cluster in plan.clusters)
    some = whole_models(with_lone_stages(plan, 0))
    assert some is not None
    assert some.startswith(f"{desk} holds the whole model: without a pipeline, data-parallel with the other clusters")
    every = whole_models(with_lone_stages(plan, 0, 1))
    assert every is not None
    assert "Each machine holds the whole model: this is data-parallel training, without a pipeline." in every
    one = with_lone_stages(plan, 0)
    alone = whole_models(replace(one, clusters=one.clusters[:1]))
    assert alone == f"{desk} holds the whole model: it trains alone, without a pipeline, and no tensor leaves it."
    third = replace(plan.clusters[0], name="c2")
    two = with_lone_stages(replace(plan, clusters=(*plan.clusters, third)), 0, 1)
    assert f"{desk} and {tower} each hold the whole model" in str(whole_models(two))
    lone = with_lone_stages(plan, 0).clusters[0]
    many = replace(plan, clusters=(*plan.clusters, *(replace(lone, name=f"x{i}") for i in range(20))))
    assert str(whole_models(many)).startswith(f"{desk}, {desk}, {desk} and 17 more each hold the whole model")


def test_the_sentence_stands_under_the_plan(plan: Plan) -> None:
    costs = plan.predicted.clusters[0]
    one = replace(
        with_lone_stages(plan, 0),
        clusters=with_lone_stages(plan, 0).clusters[:1],
        predicted=replace(plan.predicted, clusters=(replace(costs, stages=costs.stages[:1]),)),
    )
    out = StringIO()
    show_plan(one, Console(file=out, width=200))
    assert out.getvalue().endswith("\n\n" + str(whole_models(one)) + "\n")
    assert "averaging" not in out.getvalue()  # one cluster averages with nobody


def test_a_node_that_would_make_more_alone_is_named_to_people_and_in_the_document(plan: Plan) -> None:
    slow = replace(plan, predicted=replace(plan.predicted, objective=1e-9))
    document = plan_document(slow, Path("plan.yaml"), Path("plan.png"))["better_alone"]
    assert isinstance(document, dict)
    speed = format_rate(document["samples_per_s"])
    said = f"{document['node']} alone would make {speed} samples/s, and this plan is worth"
    assert said in shown(slow)
    assert "plan for that node alone." in shown(slow)
    demanding = replace(slow, min_stages=2)
    assert "leave --min-stages out, and planning finds that." in shown(demanding)
    constrained = replace(demanding, fleet=replace(plan.fleet, constraints=Constraints(min_clusters=2)))
    assert "leave --min-stages and constraints.min_clusters out, and planning finds that." in shown(constrained)
    fast = replace(plan, predicted=replace(plan.predicted, objective=1e12))
    assert plan_document(fast, Path("plan.yaml"), Path("plan.png"))["better_alone"] is None
    assert " alone " not in shown(fast)
    assert "samples/s, worth 3 as it is not always there, and" in alone_words(SingleNodePlan("n", 12.0, 3.0), slow)


def shown(plan: Plan) -> str:
    out = StringIO()
    show_plan(plan, Console(file=out, width=200))
    return out.getvalue()


def test_only_what_costs_something_is_said_to(plan: Plan) -> None:
    assert "152: its samples/s, less 5% that staleness and rarer averaging are assumed to cost" in shown(plan)
    synchronous = replace(plan, workload=replace(plan.workload, max_staleness=0))
    assert "less 5% that rarer averaging is assumed to cost" in shown(synchronous)
    predicted = replace(plan.predicted, clusters=plan.predicted.clusters[:1])
    one = shown(replace(synchronous, clusters=plan.clusters[:1], predicted=predicted))
    assert "152: all of its samples/s count" in one
    away = tuple(replace(node, hours=1 << 20) for node in plan.fleet.nodes)
    absent = shown(replace(plan, fleet=replace(plan.fleet, nodes=away)))
    assert "staleness, rarer averaging and absence are assumed" in absent


def test_the_bound_says_how_far_the_plan_is_from_it(plan: Plan) -> None:
    far = shown(replace(plan, predicted=replace(plan.predicted, best_possible=304.0)))
    assert "no plan can be worth more than 304: with 152 this one reaches 50% of that" in far
    assert "loose" not in far
    assert "The bound is loose: it leaves out latency" in shown(
        replace(plan, predicted=replace(plan.predicted, best_possible=310.0))
    )
    reached = shown(replace(plan, predicted=replace(plan.predicted, best_possible=152.0)))
    assert "no plan can be worth more than 152, and this one is worth as much" in reached


def test_a_large_plan_is_summed_up_and_all_of_it_is_printed_if_asked_for(plan: Plan) -> None:
    many = 14
    clusters = tuple(replace(plan.clusters[i % 2], name=f"c{i}") for i in range(many))
    predicted = replace(plan.predicted, clusters=tuple(plan.predicted.clusters[i % 2] for i in range(many)))
    large = replace(plan, clusters=clusters, predicted=predicted)
    for width in (80, 110):
        out = StringIO()
        show_plan(large, Console(file=out, width=width))
        lines = out.getvalue().splitlines()
        assert max(map(len, lines)) <= width
        assert len(lines) < 45
        assert lines[2].split()[:5] == ["cluster", "stages", "samples/s", "busy", "busiest"]
        assert "  and 2 more clusters: 2 stages, 60.1 to 100 samples/s each" in lines
        assert "predicted" in out.getvalue()
        assert lines[-1] == "--all prints each stage and each ring."
    whole = StringIO()
    show_plan(large, Console(file=whole, width=110), everything=True)
    assert all(f"c{i}: " in whole.getvalue() for i in range(many))


def test_a_stage_that_waits_for_averaging_or_sends_is_not_busy(plan: Plan) -> None:
    first = plan.predicted.clusters[0]
    waits = replace(first, samples_per_s=first.samples_per_s / 50)
    slow = replace(plan, predicted=replace(plan.predicted, clusters=(waits, *plan.predicted.clusters[1:])))
    busiest = max(first.stages, key=lambda stage: stage.compute_s)
    share = waits.busy(busiest, plan.workload.micro_batch)
    assert share == first.busy(busiest, plan.workload.micro_batch) / 50
    sends = replace(busiest, up_s=50 * busiest.occupancy_s, occupancy_s=50 * busiest.occupancy_s)
    assert waits.busy(sends, plan.workload.micro_batch) == share
    assert f"{share:.0%}" in shown(slow)


def test_no_column_is_cut_off_at_any_usual_width(plan: Plan) -> None:
    names = {stage.node: f"{stage.node}-in-a-cloud-far-away" for c in plan.clusters for stage in c.stages}
    clusters = tuple(
        replace(c, stages=tuple(replace(stage, node=names[stage.node]) for stage in c.stages)) for c in plan.clusters
    )
    nodes = tuple(replace(node, name=names.get(node.name, node.name)) for node in plan.fleet.nodes)
    long = replace(plan, clusters=clusters, fleet=replace(plan.fleet, nodes=nodes))
    for width in (80, 110):
        out = StringIO()
        show_plan(long, Console(file=out, width=width))
        lines = out.getvalue().splitlines()
        assert lines[3].split()[:7] == ["stage", "node", "units", "compute", "up", "down", "busy"]
        joined = "".join(line.split()[1] if line[2:3].isdigit() else line.strip().split(" ")[0] for line in lines[4:8])
        assert next(iter(names.values())) in joined.replace(" ", "")
