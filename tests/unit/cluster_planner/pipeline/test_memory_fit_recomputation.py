"""Which stages recompute: those whose memory is too short otherwise, when that is worth another forward."""

from collections.abc import Callable

import numpy as np
import pytest

from cluster_planner.inputs.fleet import Fleet, Node
from cluster_planner.inputs.links import RegionLink
from cluster_planner.inputs.model_costs import ModelCosts, Workload
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.pipeline.best_pipeline import plan_pipeline
from cluster_planner.pipeline.memory_fit import largest_fitting_window, recomputing
from cluster_planner.plan import Stage

Model = Callable[..., ModelCosts]
Work = Callable[..., Workload]
MakeNode = Callable[..., Node]
STAGES = (Stage("a", (0, 4)), Stage("b", (4, 8)))


def heavy(make_model: Model, make_workload: Work, mode: str = "auto", **changes: object) -> SpanCosts:
    """Activations of 100 MB a unit and sample beside 1 MB of weights."""
    model = make_model(8, saved_bytes=10**8, boundary_bytes=10**6)
    return SpanCosts(model, make_workload(micro_batch=1, update_every=16, activation_checkpointing=mode, **changes))


def test_each_stage_takes_the_first_way_that_fits(make_model: Model, make_workload: Work, make_node: MakeNode) -> None:
    spans = heavy(make_model, make_workload)
    fleet = Fleet((make_node("a", memory_bytes=spans.memory_bytes(0, 4, 3)), make_node("b", memory_bytes=10**10)))
    assert recomputing(fleet, spans, STAGES, 3) == STAGES
    assert recomputing(fleet, spans, STAGES, 4) == (Stage("a", (0, 4), True), STAGES[1])
    never = heavy(make_model, make_workload, "never")
    assert recomputing(fleet, never, STAGES, 4) is None
    always = heavy(make_model, make_workload, "always")
    assert recomputing(fleet, always, STAGES, 1) == (Stage("a", (0, 4), True), Stage("b", (4, 8), True))


def test_tables_say_the_same_as_the_stages(make_model: Model, make_workload: Work) -> None:
    for mode in ("auto", "always", "never"):
        spans = heavy(make_model, make_workload, mode)
        memory = np.array([spans.memory_bytes(0, 3, 3), 5e8])
        host_memory = np.array([np.inf, spans.host_bytes(1, 4, 3)])
        fits = spans.ways_that_fit(memory, host_memory, 3)
        for node in range(2):
            for a in range(8):
                for b in range(a + 1, 9):
                    fits_there = spans.host_bytes(a, b, 3) <= host_memory[node]
                    for way in (False, True):
                        needed = spans.memory_bytes(a, b, 3, recomputes=way)
                        allowed = mode == "auto" or way == (mode == "always")
                        assert fits[int(way), node, a, b] == (allowed and needed <= memory[node] and fits_there)


def far(make_node: MakeNode, memory_bytes: int) -> Fleet:
    nodes = tuple(make_node(name, memory_bytes=memory_bytes, region="x") for name in "ab")
    return Fleet(nodes, (), (RegionLink("x", "x", 0.1, 1e8),))


def test_a_long_round_trip_is_hidden_by_recomputing(
    make_model: Model, make_workload: Work, make_node: MakeNode
) -> None:
    """100 ms one way and 120 ms a stage: one micro-batch in flight idles, and memory holds no second one's
    activations."""
    spans = heavy(make_model, make_workload)
    fleet = far(make_node, spans.memory_bytes(0, 4, 1) + 10**7)
    found = plan_pipeline(fleet, spans, fleet.names, 0.0, 2)
    without = plan_pipeline(fleet, heavy(make_model, make_workload, "never"), fleet.names, 0.0, 2)
    assert found is not None
    assert without is not None
    assert [stage.recomputes for stage in found.stages] == [True, False]  # the last keeps those of one anyway
    assert without.window == 1
    assert found.window > 2
    assert found.samples_per_s > 1.5 * without.samples_per_s


def test_where_memory_is_ample_nobody_recomputes(make_model: Model, make_workload: Work, make_node: MakeNode) -> None:
    spans = heavy(make_model, make_workload)
    found = plan_pipeline(far(make_node, 10**12), spans, ("a", "b"), 0.0, 2)
    assert found is not None
    assert not any(stage.recomputes for stage in found.stages)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_what_could_not_be_held_at_all_can(
    schedule: str, make_model: Model, make_workload: Work, make_node: MakeNode
) -> None:
    spans = heavy(make_model, make_workload, schedule=schedule, max_staleness=0)
    fleet = far(make_node, spans.memory_bytes(4, 8, 16, recomputes=True))
    found = plan_pipeline(fleet, spans, fleet.names, 0.0, 2)
    assert found is not None
    assert any(stage.recomputes for stage in found.stages)
    assert (
        plan_pipeline(
            fleet, heavy(make_model, make_workload, "never", schedule=schedule, max_staleness=0), fleet.names, 0.0, 2
        )
        is None
        or schedule == "1f1b"
    )


def test_a_window_that_grows_leaves_stages_their_way_to_recompute(
    make_model: Model, make_workload: Work, make_node: MakeNode
) -> None:
    """Unit by unit 100 MB and 3 MB for each in flight; at once 400 MB. Beyond 100 in flight that takes less."""
    spans = heavy(make_model, make_workload, "always")
    stages = (Stage("a", (0, 4), True), Stage("b", (4, 8), True))
    fleet = Fleet((make_node("a", memory_bytes=10**12), make_node("b", memory_bytes=10**12)))
    assert [spans.recomputes_unit_by_unit(0, 4, (0, 2), window) for window in (99, 100)] == [True, False]
    assert largest_fitting_window(fleet, spans, stages, 500, planned=4) == 99
    assert largest_fitting_window(fleet, spans, stages, 500, planned=200) == 500
    assert largest_fitting_window(fleet, spans, stages, 500) == 500
