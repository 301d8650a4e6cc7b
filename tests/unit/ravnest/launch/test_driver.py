from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster_planner.plan import Plan
from ravnest.errors import NodeLost, RunFailed
from ravnest.launch import driver, report


class Recorded:
    def __init__(self) -> None:
        self.events: list[report.RunEvent] = []

    def on(self, event: report.RunEvent) -> None:
        self.events.append(event)


def failed(
    monkeypatch: pytest.MonkeyPatch, plan: Plan, error: Exception, *, has_checkpoint: bool, phases: Sequence[str]
) -> RunFailed:
    """What a run raises whose session comes through these phases to this error."""
    folder = SimpleNamespace(begin=lambda path: None, has_checkpoint=has_checkpoint, path=Path("out"))
    prepared = SimpleNamespace(folder=folder, plan_path=Path("plan.yaml"))

    def train(*_: object, observer: report.Observer, **__: object) -> Any:
        for phase in phases:
            observer.on(report.Phase(phase))
        raise error

    monkeypatch.setattr(driver, "prepare", lambda *_, **__: prepared)
    monkeypatch.setattr(driver, "train", train)
    observer = Recorded()
    with pytest.raises(RunFailed) as caught:
        driver.run(plan, Path("plan.yaml"), observer=observer)
    assert observer.events == [report.Phase(phase) for phase in phases]
    return caught.value


def test_before_training_nobody_misses_a_checkpoint(monkeypatch: pytest.MonkeyPatch, plan: Plan) -> None:
    error = failed(monkeypatch, plan, RunFailed("Ray did not start"), has_checkpoint=False, phases=["starting Ray"])
    assert str(error) == "Ray did not start"


def test_once_it_trains_it_is_told_what_there_is_to_go_on_from(monkeypatch: pytest.MonkeyPatch, plan: Plan) -> None:
    phases = ["starting Ray", "training", "draining"]
    lost = failed(monkeypatch, plan, NodeLost("desk is silent"), has_checkpoint=False, phases=phases)
    assert isinstance(lost, NodeLost)
    assert str(lost) == "desk is silent; there was no checkpoint yet"
    resumed = failed(monkeypatch, plan, RunFailed("no room"), has_checkpoint=True, phases=["starting Ray"])
    assert str(resumed) == ("no room; go on from the last checkpoint with: ravnest run plan.yaml --resume --out out")
