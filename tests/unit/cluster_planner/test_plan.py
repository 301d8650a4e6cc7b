""" """

from collections.abc import Callable
from dataclasses import replace

import pytest

from cluster_planner.errors import InvalidInput
from cluster_planner.inputs.fleet import Fleet
from cluster_planner.inputs.model_costs import ModelCosts, Workload
from cluster_planner.plan import Cluster, Plan, Ring, Spare, Stage, common_refinement, holder, validate
from cluster_planner.planner import make_plan


@pytest.fixture(scope="module")
def plan(home: Fleet, make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]) -> Plan:
    made = make_plan(home, make_model(8), make_workload(), job={}, job_file="job.yaml", min_stages=2)
    names = home.names
    clusters = (
        Cluster("c0", 4, (Stage(names[0], (0, 5)), Stage(names[1], (5, 8)))),
        Cluster("c1", 4, (Stage(names[2], (0, 3)), Stage(names[3], (3, 8)))),
    )
    rings = (
        Ring((0, 3), (("c0", 0), ("c1", 0))),
        Ring((3, 5), (("c0", 0), ("c1", 1))),
        Ring((5, 8), (("c1", 1), ("c0", 1))),
    )
    one = replace(made.predicted.clusters[0], samples_per_s=30.0, stages=made.predicted.clusters[0].stages[:2])
    predicted = replace(made.predicted, clusters=(one, replace(one, samples_per_s=10.0)))
    spares = (Spare(names[4], "slow"), Spare(names[5], "slow"))
    return replace(made, clusters=clusters, rings=rings, predicted=predicted, spares=spares)


def test_helpers_answer_who_holds_what(plan: Plan) -> None:
    validate(plan)
    assert plan.cluster("c1").stages[1].units == (3, 8)
    assert plan.stage_segments("c0", 0) == ((0, 3), (3, 5))
    assert plan.stage_segments("c1", 1) == ((3, 5), (5, 8))
    assert plan.ring_of((5, 8)).members == (("c1", 1), ("c0", 1))


def test_shares_follow_speed_and_meet(plan: Plan) -> None:
    assert plan.share("c0") == (0.0, 0.75)
    assert plan.share("c1") == (0.75, 1.0)


def test_unknown_names_are_refused(plan: Plan) -> None:
    with pytest.raises(InvalidInput, match="no cluster is named 'c9'; there are c0, c1"):
        plan.cluster("c9")
    with pytest.raises(InvalidInput, match="no ring averages the units 0 to 5"):
        plan.ring_of((0, 5))


def stages(plan: Plan, *spans: tuple[int, int]) -> tuple[Cluster, ...]:
    """The plan's clusters, with other spans for the first."""
    first = plan.clusters[0]
    changed = tuple(replace(s, units=units) for s, units in zip(first.stages, spans, strict=False))
    return (replace(first, stages=changed), plan.clusters[1])


CASES: list[tuple[Callable[[Plan], Plan], str]] = [
    (lambda p: replace(p, clusters=()), "clusters: at least one"),
    (lambda p: replace(p, clusters=stages(p, (0, 5), (6, 8))), r"clusters\[0\].stages\[1\].units: must start at 5"),
    (lambda p: replace(p, clusters=stages(p, (0, 5), (4, 8))), r"clusters\[0\].stages\[1\].units: must start at 5"),
    (lambda p: replace(p, clusters=stages(p, (0, 5), (5, 5))), r"not \[5, 5\]"),
    (lambda p: replace(p, clusters=stages(p, (0, 5), (5, 9))), r"at 8 at most; not \[5, 9\]"),
    (lambda p: replace(p, clusters=stages(p, (0, 5))), r"clusters\[0\].stages: the stages end at unit 5"),
    *(
        (
            lambda p, name=name: replace(p, clusters=(p.clusters[0], replace(p.clusters[1], name=name))),
            r"clusters\[1\].name: must be a name of at most 32 letters, digits, - and _, not ",
        )
        for name in ("../../../evil", "/tmp/evil", "..", "", "c\n1", "c" * 33, "c.1")
    ),
    (lambda p: replace(p, clusters=(p.clusters[0], p.clusters[0])), r"clusters\[1\].name: .* not 'c0'"),
    (
        lambda p: replace(p, clusters=(replace(p.clusters[0], window=9), p.clusters[1])),
        r"clusters\[0\].window: must be from 1 to 8 .* not 9",
    ),
    (
        lambda p: replace(p, clusters=(p.clusters[0], replace(p.clusters[0], name="c1"))),
        r"clusters\[1\].stages\[0\].node: 'fast0' already runs clusters\[0\].stages\[0\]",
    ),
    (
        lambda p: replace(p, clusters=(p.clusters[0], Cluster("c1", 4, (Stage("nobody", (0, 8)),)))),
        "no node is named 'nobody'",
    ),
    (lambda p: replace(p, rings=p.rings[1:]), r"rings: must be one ring per segment, in order: \[0, 3\], \[3, 5\]"),
    (
        lambda p: replace(p, rings=(Ring((0, 5), p.rings[0].members), *p.rings[2:])),
        r"rings: must be one ring per segment, in order: \[0, 3\], \[3, 5\]",
    ),
    (
        lambda p: replace(p, rings=(p.rings[0], p.rings[0], *p.rings[1:])),
        r"rings: must be one ring per segment, in order: \[0, 3\], \[3, 5\]",
    ),
    (
        lambda p: replace(p, rings=(Ring((0, 3), (("c0", 0),)), *p.rings[1:])),
        r"rings\[0\].members: must be one stage of each cluster \(c0, c1\)",
    ),
    (
        lambda p: replace(p, rings=(Ring((0, 3), (("c0", 1), ("c1", 0))), *p.rings[1:])),
        r"rings\[0\].members: stage 1 of c0 does not hold units \[0, 3\]",
    ),
    (
        lambda p: replace(p, rings=(Ring((0, 3), (("c0", 7), ("c1", 0))), *p.rings[1:])),
        r"rings\[0\].members: c0 has no stage 7",
    ),
    (lambda p: replace(p, spares=p.spares[:1]), r"nodes\[5\].name: 'slow2' is neither in a stage nor a spare"),
    (lambda p: replace(p, spares=(*p.spares, Spare("fast0", ""))), r"spares\[2\].node: 'fast0' runs a stage"),
    (lambda p: replace(p, spares=(*p.spares, Spare("x", ""))), r"spares\[2\].node: no node is named 'x'"),
    (
        lambda p: replace(p, predicted=replace(p.predicted, clusters=p.predicted.clusters[:1])),
        "predicted.clusters: must have one entry per cluster",
    ),
]


@pytest.mark.parametrize(("change", "message"), CASES)
def test_a_plan_that_cannot_run_is_refused(plan: Plan, change: Callable[[Plan], Plan], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        validate(change(plan))


def test_segments_end_wherever_any_cluster_cuts() -> None:
    assert common_refinement([[(0, 5), (5, 9)], [(0, 3), (3, 5), (5, 9)]]) == ((0, 3), (3, 5), (5, 9))
    assert common_refinement([[(0, 4)]]) == ((0, 4),)


def test_each_segment_is_held_by_one_stage() -> None:
    spans = [(0, 3), (3, 9)]
    assert [holder(spans, s) for s in ((0, 3), (3, 5), (5, 9))] == [0, 1, 1]
    with pytest.raises(ValueError, match="no span"):
        holder(spans, (2, 4))
