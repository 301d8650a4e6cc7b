from dataclasses import replace
from pathlib import Path

import pytest

from cluster_planner import Plan, save_plan
from ravnest.driver.observe.report import ClusterProgress, EvaluatedEvent, PhaseEvent, ProgressEvent
from ravnest.errors import InvalidInput
from ravnest.results.comparing import POINTS, compare_runs, differing, settings_of
from tests.unit.ravnest.results.test_run_state import run_with


def progress(samples: int, *losses: float | None) -> ProgressEvent:
    clusters = (ClusterProgress(f"c{at}", samples // 2, 1.0, loss, 0, 1, 0) for at, loss in enumerate(losses))
    return ProgressEvent(1.0, samples, None, tuple(clusters))


def run_of(path: Path, plan: Plan, *events: ProgressEvent | EvaluatedEvent | PhaseEvent) -> Path:
    run_with(path, *events)
    save_plan(plan, path / "plan.yaml")
    return path


def test_losses_are_compared_at_equal_numbers_of_samples(plan: Plan, tmp_path: Path) -> None:
    first = [progress(100 * step, 4.0 - step / 10, 4.2 - step / 10) for step in range(1, 9)]
    second = [progress(100 * step, 5.0, None) for step in range(1, 5)]
    a = run_of(tmp_path / "a", plan, *first, EvaluatedEvent(400, 3.0, {}, False), EvaluatedEvent(800, 3.5, {}, True))
    found = compare_runs([a, run_of(tmp_path / "b", plan, *second)])
    assert len(found.losses) == POINTS
    assert found.losses[0] == (100, (pytest.approx(4.0), 5.0))
    assert found.losses[-1] == (800, (pytest.approx(3.3), None))
    assert [run.samples for run in found.runs] == [800, 400]
    assert [run.state for run in found.runs] == ["failed", "failed"]
    assert (found.runs[0].best_held_out, found.runs[0].held_out[-1]) == (3.0, (800, 3.5))
    assert found.runs[1].best_held_out is None
    assert found.runs[0].samples_per_s == pytest.approx(800 / 7)
    assert found.settings == {}


def test_the_time_of_a_resumed_run_is_that_of_its_sessions(plan: Plan, tmp_path: Path) -> None:
    path = run_of(tmp_path / "a", plan, *(progress(10 * step, 1.0) for step in range(5)))
    text = (path / "metrics.jsonl").read_text()
    (path / "metrics.jsonl").write_text(text + text)
    found = compare_runs([path, path])
    assert found.runs[0].seconds == 8.0


def test_losses_of_what_a_resumed_run_makes_anew_are_those_of_its_last_session(plan: Plan, tmp_path: Path) -> None:
    first, again = (
        [progress(10 * step, loss) for step in steps] for steps, loss in ((range(9), 9.0), (range(4, 9), 1.0))
    )
    path = run_of(tmp_path / "a", plan, *first, *again)
    curve = compare_runs([path, path]).runs[0].trained
    assert list(curve) == [(10 * step, 9.0 if step < 4 else 1.0) for step in range(9)]


def test_what_differs_is_named_by_its_key(plan: Plan, tmp_path: Path) -> None:
    one, other = ({"optimizer": {"lr": lr, "name": "adamw"}, "metrics": ["accuracy"]} for lr in (0.1, 0.2))
    windows = (replace(plan.clusters[0], window=9), *plan.clusters[1:])
    settings = [
        dict(settings_of(each)) for each in (replace(plan, job=one), replace(plan, job=other, clusters=windows))
    ]
    assert differing(settings) == {"job.optimizer.lr": (0.1, 0.2), "clusters.c0.window": (5, 9)}
    assert differing([{"a": 1}, {}]) == {"a": (1, None)}
    assert differing([{"cuts": "", "args": "{}", "b": False}, {"b": 0}]) == {}, "no row looks equal"


def test_a_key_that_an_older_version_had_not_is_as_its_default(plan: Plan) -> None:
    job = {"model": {"factory": "m:f"}, "data": {"factory": "d:f"}, "loss": "mse", "stop": {"samples": 900}}
    older, newer, other = (
        dict(settings_of(replace(plan, job={**job, **more}))) for more in ({}, {"max_lag": 1}, {"max_lag": 2})
    )
    assert differing([older, newer]) == {}
    assert differing([older, other]) == {"job.max_lag": (1, 2)}


def test_one_run_or_a_folder_without_one_is_refused(plan: Plan, tmp_path: Path) -> None:
    path = run_of(tmp_path / "a", plan, progress(8, 1.0))
    with pytest.raises(InvalidInput, match="two runs at least"):
        compare_runs([path])
    with pytest.raises(InvalidInput, match="no run is here"):
        compare_runs([path, tmp_path])
