from types import SimpleNamespace
from typing import Any

import pytest

from ravnest.driver.observe.record import StageTimes
from ravnest.driver.outcome import stage_figures
from tests.unit.ravnest.simulator.test_fleet import home_plan


@pytest.mark.parametrize("more", [0, 3])
def test_tensors_are_compared_with_what_the_plan_counts_for_the_window_that_was_used(more: int) -> None:
    plan = home_plan()
    tuned = {cluster.name: cluster.window + more for cluster in plan.clusters}
    predicted = {
        f"{cluster.name}.s{at}": costs.memory_bytes - plan.workload.process_bytes
        for cluster, prediction in zip(plan.clusters, plan.predicted.clusters, strict=True)
        for at, costs in enumerate(prediction.stages)
    }
    record: Any = SimpleNamespace(
        times=StageTimes(),
        staleness={},
        imitated={},
        largest_windows=tuned if more else {},
        tensor_bytes={stage: {"weights": 7} for stage in predicted},
    )
    found = stage_figures(plan, record)
    assert [each.stage for each in found] == list(predicted)
    for figures in found:
        memory = figures.memory
        assert memory is not None
        assert (memory.window, memory.tensor_bytes) == (tuned[figures.stage.partition(".")[0]], 7)
        if more:
            assert memory.planned_bytes > predicted[figures.stage]
        else:
            assert memory.planned_bytes == predicted[figures.stage]
