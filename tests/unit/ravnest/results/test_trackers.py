"""Trackers for services, against stand-ins of their packages: what is called, with what, and when it ends."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from ravnest.errors import InvalidInput
from ravnest.results import trackers

RECORDS: list[dict[str, Any]] = [
    {"kind": "phase", "at_s": 0.0, "name": "training"},
    {"kind": "progress", "at_s": 1.0, "samples": 48, "clusters": [{"name": "c0", "samples_per_s": 12.5, "loss": None}]},
    {"kind": "evaluated", "at_s": 2.0, "samples": 96, "loss": 1.5, "metrics": {"accuracy": 0.25}},
    {"kind": "evaluated", "at_s": 3.0, "samples": 192, "loss": None, "metrics": {}},
]


def test_wandb_is_told_each_point_with_the_axis_of_its_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    run = SimpleNamespace(
        define_metric=lambda *names, **options: asked.append(("define", *names, options)),
        log=lambda points: asked.append(("log", points)),
        finish=lambda: asked.append("finish"),
    )
    package = SimpleNamespace(init=lambda **given: asked.append(("init", given)) or run)
    monkeypatch.setitem(sys.modules, "wandb", package)  # type: ignore[arg-type]
    tracker = trackers.wandb(project="mine")
    for record in [*RECORDS, RECORDS[2]]:
        tracker(record)
    tracker.close()
    assert asked[0] == ("init", {"project": "mine"})
    assert [one for one in asked if one[0] == "log"] == [
        ("log", {"samples_per_s/c0": 12.5, "samples_per_s/c0 at": 48}),
        *[
            ("log", {"held_out/loss": 1.5, "held_out/loss at": 96}),
            ("log", {"held_out/accuracy": 0.25, "held_out/accuracy at": 96}),
        ]
        * 2,
    ]
    assert asked.count(("define", "held_out/loss", {"step_metric": "held_out/loss at"})) == 1
    assert asked[-1] == "finish"


class Client:
    """Of MLflow: what ravnest uses of it."""

    def __init__(self, uri: str | None) -> None:
        self.uri, self.asked = uri, list[Any]()

    def get_experiment_by_name(self, name: str) -> None:
        self.asked.append(("find", name))

    def create_experiment(self, name: str) -> str:
        self.asked.append(("create", name))
        return "7"

    def create_run(self, number: str, run_name: str | None) -> Any:
        self.asked.append(("run", number, run_name))
        return SimpleNamespace(info=SimpleNamespace(run_id="r1"))

    def log_batch(self, run_id: str, metrics: list[Any]) -> None:
        self.asked.append((run_id, *[(each.key, each.value, each.step) for each in metrics]))

    def set_terminated(self, run_id: str) -> None:
        self.asked.append(("end", run_id))


def test_mlflow_is_told_each_record_at_once_in_a_run_of_the_experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    clients: list[Client] = []

    def metric(key: str, value: float, timestamp: int, step: int) -> Any:
        return SimpleNamespace(key=key, value=value, step=step)

    monkeypatch.setitem(sys.modules, "mlflow.entities", SimpleNamespace(Metric=metric))  # type: ignore[arg-type]
    package = SimpleNamespace(MlflowClient=lambda uri: clients.append(Client(uri)) or clients[-1])
    monkeypatch.setitem(sys.modules, "mlflow", package)  # type: ignore[arg-type]
    tracker = trackers.mlflow("http://127.0.0.1:5000", experiment="home", run_name="first")
    for record in RECORDS:
        tracker(record)
    tracker.close()
    (client,) = clients
    assert client.uri == "http://127.0.0.1:5000"
    assert client.asked == [
        ("find", "home"),
        ("create", "home"),
        ("run", "7", "first"),
        ("r1", ("samples_per_s/c0", 12.5, 48)),
        ("r1", ("held_out/loss", 1.5, 96), ("held_out/accuracy", 0.25, 96)),
        ("end", "r1"),
    ]
    trackers.mlflow(run_id="r0")(RECORDS[2])
    assert clients[1].asked[0][:2] == ("r0", ("held_out/loss", 1.5, 96))


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_package_that_is_not_there_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=f"report_to: needs the package {name}"):
        getattr(trackers, name)()
