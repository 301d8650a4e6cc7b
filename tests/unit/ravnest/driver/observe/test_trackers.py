"""Trackers hear of each record in their own thread, and none of them can harm a run."""

import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ravnest.driver.observe import trackers as module
from ravnest.driver.observe.metrics_file import MetricsWriter, read_metrics
from ravnest.driver.observe.trackers import Trackers
from ravnest.errors import InvalidInput
from ravnest.factories import FactoryConfig

HEARD: list[Any] = []
MAY_GO_ON = threading.Event()

MODULE = """
import tests.unit.ravnest.driver.observe.test_trackers as here

class Keeping:
    def __init__(self, name):
        self.name = name

    def __call__(self, record):
        here.HEARD.append((self.name, record["kind"], record.get("loss")))

    def close(self):
        here.HEARD.append((self.name, "closed", None))

def breaking():
    def tracker(record):
        raise OSError("no network")
    return tracker

def waiting():
    return lambda record: here.MAY_GO_ON.wait(30)

def nothing():
    return None
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "tracking_of_tests.py").write_text(MODULE)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "tracking_of_tests", raising=False)
    HEARD.clear()
    MAY_GO_ON.clear()
    yield tmp_path
    sys.modules.pop("tracking_of_tests", None)


def made(folder: Path, *wanted: str, **args: Any) -> Trackers:
    factories = [FactoryConfig(factory=f"tracking_of_tests:{name}", args=args) for name in wanted]
    return Trackers(factories, [folder], "job.yaml")


def test_each_record_of_the_file_is_given_in_order_and_the_end_is_told(folder: Path) -> None:
    trackers = made(folder, "Keeping", name="a")
    with MetricsWriter(folder / "metrics.jsonl", trackers) as writer:
        writer.write("phase", 0.0, name="training")
        writer.write("note", 1.0, loss=float("nan"))
    assert HEARD == [("a", "phase", None), ("a", "note", None), ("a", "closed", None)]
    assert [record["kind"] for record in read_metrics(folder / "metrics.jsonl")] == ["phase", "note"]
    assert trackers.take_troubles() == []


def test_one_that_raises_is_told_of_once_and_the_others_go_on(folder: Path) -> None:
    wanted = [
        FactoryConfig(factory="tracking_of_tests:breaking"),
        FactoryConfig(factory="tracking_of_tests:Keeping", args={"name": "b"}),
    ]
    trackers = Trackers(wanted, [folder], "job.yaml")
    trackers.start()
    for _ in range(3):
        trackers.give({"kind": "note"})
    trackers.close()
    expected = [("b", "note", None)] * 3
    assert [*expected, ("b", "closed", None)] == HEARD
    (said,) = trackers.take_troubles()
    assert said.startswith("tracking_of_tests:breaking (report_to[0]) raised OSError: no network")
    assert trackers.take_troubles() == []


def test_a_slow_one_holds_nobody_up_and_what_it_misses_is_counted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_WAITING", 5)
    trackers = made(folder, "waiting")
    trackers.start()
    for _ in range(20):
        trackers.give({"kind": "note"})
    (said,) = trackers.take_troubles()
    MAY_GO_ON.set()
    trackers.close()
    dropped = int(said.split()[1])
    assert 20 - 5 - 1 <= dropped <= 20 - 5


def test_what_makes_no_tracker_is_refused_by_its_key(folder: Path) -> None:
    with pytest.raises(InvalidInput, match=r"job\.yaml: report_to\[0\]\.factory: .*NoneType, expected a callable"):
        made(folder, "nothing")
    with pytest.raises(InvalidInput, match=r"report_to\[0\]\.args.*takes \(name\)"):
        made(folder, "Keeping")


def test_without_any_nothing_is_started() -> None:
    before = threading.active_count()
    given: Mapping[str, Any] = {"kind": "note"}
    trackers = Trackers([], [], "job.yaml")
    trackers.start()
    trackers.give(given)
    assert threading.active_count() == before
    trackers.close()
