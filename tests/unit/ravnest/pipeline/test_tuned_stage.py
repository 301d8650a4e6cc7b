"""A stage with its measuring and tuning, as drivers run it."""

from cluster_planner import Schedule
from ravnest.pipeline import StageShape
from ravnest.pipeline import events as ev
from ravnest.pipeline.tuned_stage import Passage, TunedStage


def first_stage(told: list[int], stages: int = 2, largest: int | None = 32, schedule: Schedule = "async") -> TunedStage:
    shape = StageShape(
        stages, 0, update_every=16, max_staleness=int(schedule == "async"), window=2, max_lag=1, schedule=schedule
    )
    return TunedStage(shape, largest, lambda tuner: told.append(tuner.window))


def far_away(stage: TunedStage, trips: int) -> int:
    """Round trips of a second, without waiting, the slowest stage taking 0.1 s: what is in flight at the end."""
    stage.handle(ev.Started(), 0.0)
    now_s = 0.0
    injected = 0
    for back in range(trips):
        while stage.machine.running is not None:
            stage.handle(ev.ForwardFinished(injected), now_s)
            injected += 1
        now_s += 1.0 / 2 if back else 1.0
        stage.handle(ev.GradientArrived(back), now_s, Passage(0.0, 0.1))
        stage.handle(ev.BackwardFinished(back), now_s)
    return stage.machine.in_flight


def test_a_first_stage_tunes_its_window_and_fills_it_at_once() -> None:
    told: list[int] = []
    assert far_away(first_stage(told), trips=5) == told[0]
    assert len(told) == 1
    assert told[0] >= 10


def test_without_a_largest_window_alone_or_synchronous_nothing_is_tuned() -> None:
    told: list[int] = []
    assert far_away(first_stage(told, largest=None), trips=5) == 2
    assert far_away(first_stage(told, schedule="1f1b"), trips=5) == 2
    assert told == []


def test_after_a_failure_nothing_is_measured() -> None:
    stage = first_stage([])
    (failure,) = stage.handle(ev.BackwardFinished(7), 0.0)
    assert "Started comes first" in str(failure)
