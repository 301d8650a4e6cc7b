"""A run of days, whose metrics.jsonl is far longer than what is read of it: counted are the bytes, not the seconds."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from cluster_planner import Plan
from ravnest.driver.observe import report
from ravnest.driver.observe.metrics_file import MetricsWriter, read_metrics
from ravnest.errors import InvalidInput
from ravnest.page.run_view import RunView
from ravnest.results import run_records
from ravnest.results.run_records import RunRecords, events_of
from tests.unit.ravnest.results.test_run_state import PROGRESS, run_with

EVERY_S = 20
HOUR_S = 3600


def write(path: Path, hours: int, *, samples: int = 0) -> int:
    """A session of a run of two clusters, of which one is lost after an hour. Returns its samples at the end."""
    with MetricsWriter(path) as writer:

        def tell(at_s: float, event: report.RunEvent) -> None:
            writer.write(report.kind_of(event), at_s, **report.as_plain(event))

        tell(0.0, report.PhaseEvent("training"))
        for at in range(EVERY_S, hours * HOUR_S, EVERY_S):
            made = samples + 10 * at
            loss = 1.0 + 1e5 / (1e4 + made)
            clusters = tuple(
                report.ClusterProgress(name, made // 2, 5.0, loss, 1, made // 32, made // 1000) for name in ("c0", "c1")
            )
            for name in ("c0", "c1"):
                fields = {"lr": 0.1, "staleness": [0, 3] if at == HOUR_S // 2 else [0, 1]}
                fields |= {"loss": loss, "samples": made // 2}
                writer.write("update", at, cluster=name, stage=1, update=made // 32, **fields)
            tell(at, report.ProgressEvent(float(at), made, None, clusters))
            if at == HOUR_S:
                tell(at, report.ClusterLostEvent("c1", "c1.s0", "attic", "it died", 40, ("c0",)))
            if at % HOUR_S == 0:
                tell(at, report.RoundCommittedEvent(at // HOUR_S, made, 20.0, None, {"c0.s0": 70, "c0.s1": 7}))
                tell(at, report.EvaluatedEvent(made, loss, {}, False))
        return made


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_records, "WHOLE_BYTES", 512 * 1024)
    monkeypatch.setattr(run_records, "TAIL_BYTES", 256 * 1024)


def bytes_read() -> int:
    """By this process so far."""
    return int(Path("/proc/self/io").read_text().split()[1])


def viewed(metrics: Path, plan: Plan) -> tuple[RunView, int, int]:
    """The view, the bytes that were read for it, and the looks."""
    view, before, looks = RunView(plan, report.kind_of), bytes_read(), 0
    records = RunRecords(metrics)
    while looks == 0 or records.behind:
        assert 0.0 <= records.part_read <= 1.0
        looks += 1
        for record in records.news() or ():
            assert not isinstance(record, InvalidInput)
            view.take(record)
    assert records.part_read == 1.0
    return view, bytes_read() - before, looks


def document(view: RunView) -> Any:
    return view.document(state="running", now_s=view.at_s, name="r", outcome={})


@pytest.mark.usefixtures("small")
def test_of_days_a_bounded_part_is_read_and_all_that_is_shown_is_right(tmp_path: Path, plan: Plan) -> None:
    metrics, history = tmp_path / "metrics.jsonl", tmp_path / "history.jsonl"
    write(metrics, 48)
    view, read, _ = viewed(metrics, plan)
    size = metrics.stat().st_size
    assert read < history.stat().st_size + 2 * 256 * 1024 + 2 * 1024 * 1024  # and a piece of the history from its end
    assert history.stat().st_size < 0.1 * size
    whole = RunView(plan, report.kind_of)
    for record in read_metrics(metrics):
        whole.take(record)
    shown, right = document(view), document(whole)
    assert shown["progress"].pop("loss") == pytest.approx(right["progress"].pop("loss"), rel=1e-3)  # smoothed
    for key in ("run", "progress", "rounds", "held_out", "events", "checkpoint"):
        assert shown[key] == right[key], key
    for cluster, other in zip(shown["clusters"], right["clusters"], strict=True):
        for key in ("state", "reason", "state_s", "samples", "lag", "max_staleness"):
            assert cluster[key] == other[key], key
        assert [each["max_staleness"] for each in cluster["stages"]] == [
            each["max_staleness"] for each in other["stages"]
        ]
    curves: Any = view.curves()
    for _, samples, loss in curves["loss"]["c0"]:
        assert loss == pytest.approx(1.0 + 1e5 / (1e4 + samples), rel=0.05)
    moments = [at_s for at_s, *_ in curves["loss"]["c0"]]
    assert 150 <= len(moments) <= 400
    assert max(b - a for a, b in pairwise(moments)) < 0.02 * 48 * HOUR_S
    assert (moments[0], moments[-1]) == pytest.approx((0.0, 48 * HOUR_S), abs=0.01 * 48 * HOUR_S)
    assert len(curves["held_out"]) == 47


@pytest.mark.usefixtures("small")
def test_what_comes_after_the_first_look_is_read_from_where_it_ended(tmp_path: Path, plan: Plan) -> None:
    metrics = tmp_path / "metrics.jsonl"
    made = write(metrics, 10)
    records = RunRecords(metrics)
    while records.behind:
        list(records.news() or ())
    list(records.news() or ())
    before = bytes_read()
    with metrics.open("a") as file:
        file.write(json.dumps({"kind": "notice", "at_s": 9.0, "text": "new"}) + "\njunk\n")
    notice, junk = list(records.news() or ())
    assert notice == {"kind": "notice", "at_s": 9.0, "text": "new"}
    assert isinstance(junk, InvalidInput)
    assert bytes_read() - before < 10_000
    assert made > 0
    metrics.write_text("")
    assert records.news() is None


@pytest.mark.usefixtures("small")
def test_of_a_run_that_goes_back_what_is_made_anew_replaces_the_old(tmp_path: Path, plan: Plan) -> None:
    metrics = tmp_path / "metrics.jsonl"
    made = write(metrics, 12)
    write(metrics, 12, samples=made // 2)
    view, _, _ = viewed(metrics, plan)
    curves: Any = view.curves()
    for points in (curves["loss"]["c0"], [[each["at_s"], each["samples"]] for each in curves["held_out"]]):
        samples = [point[1] for point in points]
        assert samples == sorted(samples)
        assert samples[-1] == pytest.approx(1.5 * made, rel=0.1)
    assert document(view)["run"]["at_s"] == pytest.approx(24 * HOUR_S, rel=0.01)


@pytest.mark.usefixtures("small")
def test_a_run_without_a_history_is_read_whole(tmp_path: Path, plan: Plan) -> None:
    metrics = tmp_path / "metrics.jsonl"
    write(metrics, 10)
    with_past, _, _ = viewed(metrics, plan)
    (tmp_path / "history.jsonl").unlink()
    view, read, _ = viewed(metrics, plan)
    assert read >= metrics.stat().st_size
    assert document(view)["progress"]["samples"] == document(with_past)["progress"]["samples"]


def test_a_history_that_does_not_know_the_beginning_is_not_used(tmp_path: Path, plan: Plan) -> None:
    metrics, history = tmp_path / "metrics.jsonl", tmp_path / "history.jsonl"
    write(metrics, 1)
    history.write_text("".join(history.read_text().splitlines(keepends=True)[1:]))
    view, read, _ = viewed(metrics, plan)
    assert read >= metrics.stat().st_size
    assert document(view)["progress"]["samples"] > 0


@pytest.mark.usefixtures("small")
def test_of_days_the_same_events_come_and_they_are_followed(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    write(metrics, 12)
    before = bytes_read()
    found = list(events_of(metrics, lambda: False, pytest.fail))
    assert bytes_read() - before < metrics.stat().st_size / 2
    kinds = [(at_s, report.kind_of(event)) for at_s, event in found]
    whole = [(record["at_s"], record["kind"]) for record in read_metrics(metrics)]
    assert kinds == [each for each in whole if each[1] not in ("update", "progress")]
    waited: list[bool] = []

    def wait() -> None:
        waited.append(True)
        with metrics.open("a") as file:
            file.write('{"kind":"notice","at_s":9,"text":"more"}\n')

    *_, last = events_of(metrics, lambda: not waited, wait)
    assert last == (9.0, report.NoticeEvent("more"))


def test_events_are_those_of_the_run_without_its_progress_and_without_a_torn_line(tmp_path: Path) -> None:
    run = run_with(tmp_path / "r", report.PhaseEvent("training"), PROGRESS, report.NoticeEvent("tablet fell behind"))
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"kind":"not')
    found = list(events_of(run / "metrics.jsonl", lambda: False, pytest.fail))
    assert found == [(0.0, report.PhaseEvent("training")), (2.0, report.NoticeEvent("tablet fell behind"))]


def test_a_damaged_line_is_told(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"kind":"phase","at_s":1,"name":5,"detail":""}\n')
    with pytest.raises(InvalidInput, match="is no phase"):
        list(events_of(tmp_path / "metrics.jsonl", lambda: False, pytest.fail))
    (tmp_path / "metrics.jsonl").write_text("junk\n")
    with pytest.raises(InvalidInput, match="is not JSON"):
        list(events_of(tmp_path / "metrics.jsonl", lambda: False, pytest.fail))
