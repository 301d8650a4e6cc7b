from collections.abc import Callable

from cluster_planner.advice.spares import MOST_REASONS, NO_CLUSTER_GAINS, NOTHING_GAINED, left_out, too_small
from cluster_planner.formatting import format_rate
from cluster_planner.inputs.constraints import Constraints, hours_from
from cluster_planner.inputs.fleet import CUDA_HOST_BYTES, Fleet, Node
from cluster_planner.inputs.links import Link
from cluster_planner.inputs.model_costs import ModelCosts, Workload
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.pipeline.best_pipeline import plan_pipeline
from cluster_planner.pipeline.memory_fit import MemoryFit
from cluster_planner.plan import Cluster, Stage


def test_reasons_say_what_the_node_would_do(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    spans = SpanCosts(make_model(8), make_workload())
    fleet = Fleet(
        (make_node("a"), make_node("b"), make_node("phone", flops_per_s=1e6), make_node("tiny", memory_bytes=9))
    )
    cluster = Cluster("c0", 4, (Stage("a", (0, 4)), Stage("b", (4, 8))))
    (spare,) = left_out(fleet, spans, [cluster], ["phone"], 2)
    assert spare.node == "phone"
    assert spare.reason.startswith("would slow c0: ")
    assert spare.reason.endswith(" without")  # one cluster averages with nobody
    assert left_out(fleet, spans, [cluster], [], 2) == ()


def test_a_spare_is_compared_with_the_cluster_nearest_to_it(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    spans = SpanCosts(make_model(8), make_workload())
    names = ("a", "b", "c", "d", "phone")
    fleet = Fleet(
        tuple(make_node(name, flops_per_s=1e6 if name == "phone" else 1e10) for name in names),
        tuple(Link("phone", name, 0.2 if name in "ab" else 0.1, 1e7) for name in "abcd"),
    )
    clusters = [
        Cluster("c0", 4, (Stage("a", (0, 4)), Stage("b", (4, 8)))),
        Cluster("c1", 4, (Stage("c", (0, 4)), Stage("d", (4, 8)))),
    ]
    (spare,) = left_out(fleet, spans, clusters, ["phone"], 2)
    assert "would slow c1" in spare.reason
    without = plan_pipeline(fleet, spans, ["c", "d"], 0.0, 2)
    assert without is not None
    assert spare.reason.endswith(f", {format_rate(without.samples_per_s)} without (rounds of averaging apart)")


def test_what_holds_nothing_says_so(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    spans = SpanCosts(make_model(8), make_workload())
    fleet = Fleet((make_node("a"), make_node("tiny", memory_bytes=9)))
    (small,) = too_small(fleet, MemoryFit(fleet, spans, 2))
    assert (small.node, "hold no unit" in small.reason) == ("tiny", True)
    gpu = make_node("gpu", device="cuda:0", host_memory_bytes=CUDA_HOST_BYTES + 9)
    (small,) = too_small(fleet := Fleet((make_node("a"), gpu)), MemoryFit(fleet, spans, 2))
    assert (small.node, "of its machine's own memory hold no unit" in small.reason) == ("gpu", True)


def test_of_very_many_spares_all_are_told_the_same(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    spans = SpanCosts(make_model(8), make_workload())
    idle = [f"n{i}" for i in range(MOST_REASONS + 1)]
    fleet = Fleet((make_node("a"), make_node("b"), *(make_node(name) for name in idle)))
    cluster = Cluster("c0", 4, (Stage("a", (0, 4)), Stage("b", (4, 8))))
    spares = left_out(fleet, spans, [cluster], idle, 2)
    assert [spare.node for spare in spares] == idle
    assert {spare.reason for spare in spares} == {NOTHING_GAINED}
    told = {spare.node: spare.reason for spare in left_out(fleet, spans, [cluster], idle, 2, idle[:3])}
    assert [told[name] for name in idle[2:4]] == [NO_CLUSTER_GAINS, NOTHING_GAINED]


def test_a_spare_that_may_join_no_cluster_says_so_and_one_that_may_is_compared_with_that(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    spans = SpanCosts(make_model(8), make_workload())
    nodes = tuple(make_node(name) for name in ("a", "b", "c", "d", "loner"))
    links = (Link("loner", "a", 0.001, 1e8), Link("loner", "c", 0.2, 1e8))
    clusters = [Cluster(f"c{i}", 4, (Stage(a, (0, 4)), Stage(b, (4, 8)))) for i, (a, b) in enumerate(("ab", "cd"))]
    barred = Fleet(nodes, links, constraints=Constraints(forbid=(("loner", "a"), ("loner", "d"))))
    (spare,) = left_out(barred, spans, clusters, ["loner"], 2)
    assert spare.reason == "may join no cluster: with it, c0 has 'loner' and 'a', which constraints keep apart"
    half = Fleet(nodes, links, constraints=Constraints(forbid=(("loner", "a"),)))
    (spare,) = left_out(half, spans, clusters, ["loner"], 2)
    assert "c1" in spare.reason


def test_a_spare_that_is_seldom_there_is_left_out_for_that(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    spans = SpanCosts(make_model(8), make_workload(update_every=100))
    fleet = Fleet((make_node("a"), make_node("b"), make_node("seldom", hours=hours_from("3-6"))))
    cluster = Cluster("c0", 9, (Stage("a", (0, 4)), Stage("b", (4, 8))))
    (spare,) = left_out(fleet, spans, [cluster], ["seldom"], 2)
    assert spare.reason.startswith("is away too long for c0: ")
    assert "samples/s with it for 12% of the day" in spare.reason
    assert spare.reason.endswith("without for 100%")


def test_a_spare_that_holds_the_model_would_be_a_cluster_that_costs_more_than_it_makes(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    """Its reason was that it would slow a machine down that trains alone, too: nobody would have joined these two."""
    spans = SpanCosts(make_model(8), make_workload(average_every=64))
    fleet = Fleet(
        (make_node("a"), make_node("b"), make_node("far", up_bytes_per_s=1e5), make_node("slow", flops_per_s=1e6))
    )
    clusters = [Cluster(f"c{i}", 3, (Stage(name, (0, 8)),)) for i, name in enumerate("ab")]
    spares = left_out(fleet, spans, clusters, ["far", "slow"], 1)
    for spare in spares:
        assert spare.reason.startswith("a cluster of its own would lower what the plan is worth from ")
    now, then = (float(word) for word in spares[0].reason.split() if word[0].isdigit())
    assert then < 0.5 * now
    assert "alone" not in left_out(fleet, spans, clusters, ["far"], 2)[0].reason
    apart = Fleet(fleet.nodes, constraints=Constraints(forbid=(("far", "a"), ("far", "b"))))
    assert "a cluster of its own" in left_out(apart, spans, clusters, ["far"], 1)[0].reason
