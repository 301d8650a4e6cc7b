from pathlib import Path
from typing import Any

import pytest

from cluster_planner import Plan
from ravnest.driver.observe.report import RunResult
from ravnest.rehearsal import rehearse as under_test


class Told:
    def __init__(self) -> None:
        self.events: list[Any] = []

    def on(self, event: Any) -> None:
        self.events.append(event)


def test_the_plan_is_run_with_its_machines_imitated_and_compared(
    monkeypatch: pytest.MonkeyPatch, plan: Plan, result: RunResult, tmp_path: Path
) -> None:
    asked: dict[str, Any] = {}

    def run(plan: Plan, path: Path | None, **options: Any) -> RunResult:
        asked.update(options, path=path)
        return result

    monkeypatch.setattr(under_test, "run", run)
    told = Told()
    rehearsal = under_test.rehearse(plan, speed=10.0, samples=640, out_dir=tmp_path, observer=told)
    assert (rehearsal.speed, rehearsal.run) == (10.0, result)
    assert (asked["imitate"].speed, asked["limit"].samples, asked["out_dir"]) == (10.0, 640, tmp_path)
    assert asked["path"] is None
    assert "rehearsing at speed 10" in told.events[0].text
