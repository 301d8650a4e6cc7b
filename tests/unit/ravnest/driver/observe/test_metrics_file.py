import contextlib
import json
import math
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ravnest.driver.observe.metrics_file import (
    MetricsWriter,
    curve_records,
    event_of,
    last_record,
    last_records,
    read_metrics,
    record_of,
)
from ravnest.driver.observe.report import CheckpointWrittenEvent, EvaluatedEvent, as_plain, kind_of
from ravnest.errors import InvalidInput
from ravnest.results.tensorboard import scalars


def test_lines_come_back(tmp_path):
    path = tmp_path / "run" / "metrics.jsonl"
    with MetricsWriter(path) as writer:
        writer.write("window", 1.23456, loss=2.5, staleness=[0, 1], cluster="c0")
        assert len(read_metrics(path)) == 1  # flushed at once
        writer.write("notice", 2, text="two\nlines \u2028 ü")
    assert read_metrics(path) == [
        {"kind": "window", "at_s": 1.235, "loss": 2.5, "staleness": [0, 1], "cluster": "c0"},
        {"kind": "notice", "at_s": 2, "text": "two\nlines \u2028 ü"},
    ]


def kinds_of(path: Path) -> list[object]:
    return [record["kind"] for record in read_metrics(path)]


def test_the_past_stands_beside_it_thinned_and_a_resumed_run_adds_to_it(tmp_path):
    path, history = tmp_path / "metrics.jsonl", tmp_path / "history.jsonl"
    clusters = [{"name": "c0", "samples_per_s": 1.0, "loss": 2.0}]
    with MetricsWriter(path) as writer:
        writer.write("phase", 0.0, name="training", detail="")
        writer.write("progress", 1.5, samples=1, clusters=clusters)
    assert kinds_of(history) == ["history", "phase", "past"]
    with MetricsWriter(path) as writer:
        writer.write("phase", 0.0, name="training", detail="")
        writer.write("progress", 2.0, samples=2, clusters=clusters)
    assert kinds_of(history) == ["history", "phase", "past", "phase", "past"]
    assert read_metrics(history)[-1]["trained_s"] == 3.5
    begins = [record["byte"] for record in read_metrics(history) if record["kind"] == "phase"]
    lines = path.read_bytes()
    assert [lines[begin : begin + 15] for begin in begins] == [b'{"kind":"phase"'] * 2


def test_a_file_that_was_begun_without_a_past_goes_on_without_and_one_of_another_file_is_replaced(tmp_path):
    path, history = tmp_path / "metrics.jsonl", tmp_path / "history.jsonl"
    path.write_text('{"kind":"phase","at_s":1}\n')
    with MetricsWriter(path) as writer:
        writer.write("phase", 2.0)
    assert not history.exists()
    path.unlink()
    history.write_text('{"kind":"phase","at_s":9,"byte":0}\n')
    with MetricsWriter(path) as writer:
        writer.write("phase", 3.0)
        writer.write("phase", 4.0)
    assert [record["at_s"] for record in read_metrics(history)] == [0.0, 3.0, 4.0]
    path.write_text('{"kind":"phase","at_s":3}\n')  # a crash has lost the last line, and the history knows of it
    MetricsWriter(path).close()
    assert not history.exists()


def test_curves_of_a_long_run_are_drawn_from_its_past(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    with MetricsWriter(path) as writer:
        for second in range(1, 6):
            clusters = [{"name": "c0", "samples_per_s": 1.0, "loss": float(second)}]
            writer.write("progress", 0.4 * second, samples=second, clusters=clusters)
    assert [record["kind"] for record in curve_records(path)] == ["progress"] * 5
    monkeypatch.setattr("ravnest.driver.observe.metrics_file.WHOLE_BYTES", 100)
    found = list(curve_records(path))
    assert [(record["kind"], record.get("losses")) for record in found] == [
        ("history", None),
        ("past", {"c0": 2.0}),
        ("past", {"c0": 4.5}),
    ]


def test_a_torn_line_of_any_length_is_dropped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"kind":"a","at_s":1}\n' + "x" * 3_000_000)
    MetricsWriter(path).close()
    assert path.read_text() == '{"kind":"a","at_s":1}\n'
    path.write_text("x" * 3_000_000)
    MetricsWriter(path).close()
    assert path.read_text() == ""


def test_numbers_that_json_lacks_become_null(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with MetricsWriter(path) as writer:
        writer.write("evaluated", 0.0, samples=5, loss=math.nan, metrics={"p": math.inf}, all=(1.0, -math.inf))
    assert read_metrics(path) == [
        {"kind": "evaluated", "at_s": 0.0, "samples": 5, "loss": None, "metrics": {"p": None}, "all": [1.0, None]}
    ]


@pytest.mark.parametrize("torn", ["", '{"kind":"upd', '{"kind":"x","at_s":1}'])
def test_a_line_torn_by_a_crash_is_skipped_and_a_resumed_run_goes_on(tmp_path, torn):
    path = tmp_path / "metrics.jsonl"
    with MetricsWriter(path) as writer:
        writer.write("a", 1.0)
    with path.open("a") as file:
        file.write(torn)
    assert [record["kind"] for record in read_metrics(path)] == ["a"]
    with MetricsWriter(path) as writer:
        writer.write("b", 2.0)
    assert [record["kind"] for record in read_metrics(path)] == ["a", "b"]


@pytest.mark.parametrize(
    ("line", "said"), [("nonsense", "is not JSON"), ("[1]", "is no record"), ("{}", "is no record")]
)
def test_a_line_that_is_no_record_is_named(tmp_path, line, said):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"kind":"a","at_s":1}\n' + line + "\n")
    with pytest.raises(InvalidInput, match=f"line 2: {said}"):
        read_metrics(path)


SHARES = {"compute": 0.9, "averaging": 0.0, "evaluation": 0.0, "handoff": 0.0, "bubble": None}
RECORDS: list[dict[str, Any]] = [
    {"kind": "notice", "at_s": 1, "text": "any"},
    {"kind": "progress", "at_s": 1, "samples": 8, "clusters": [{"name": "a", "samples_per_s": 2.5, "loss": None}]},
    {"kind": "evaluated", "at_s": 1.5, "samples": 8, "loss": 2.5, "metrics": {"accuracy": 0.5}},
    {"kind": "update", "at_s": 1, "cluster": "a", "stage": 0, "update": 3, "lr": 0.1, "staleness": [0]},
    {"kind": "time", "at_s": 1, "stages": {"a.s0": SHARES}},
    {"kind": "memory", "at_s": 1, "cluster": "a", "stage": 0, "tensor_bytes": {"weights": 5}},
]
LOSS = {"loss": 2.5, "samples": 9}


def spoiled(record: Any) -> Iterator[Any]:
    """The record with each of its values, at any depth, once left out and once of another kind."""
    if isinstance(record, dict):
        for key, value in record.items():
            yield {other: record[other] for other in record if other != key}
            for wrong in ({"a": "b"}, "text" if not isinstance(value, str) else 7, True, [["c"]], -1e400, 10**400):
                yield record | {key: wrong}
            for inner in spoiled(value):
                yield record | {key: inner}
    elif isinstance(record, list):
        for index, value in enumerate(record):
            for inner in spoiled(value):
                yield [*record[:index], inner, *record[index + 1 :]]


@pytest.mark.parametrize("record", [*RECORDS, RECORDS[3] | LOSS], ids=lambda record: record["kind"])
def test_a_whole_record_with_a_wrong_value_is_named_or_can_be_drawn(tmp_path, record):
    """Whatever is read back is drawn: anything else is a mistake in ravnest."""
    path, refused = tmp_path / "metrics.jsonl", []
    path.write_text(json.dumps(record) + "\n")
    read_metrics(path)
    for wrong in spoiled(record):
        path.write_text(json.dumps(RECORDS[0]) + "\n" + json.dumps(wrong) + "\n")
        try:
            found = read_metrics(path)
        except InvalidInput as error:
            refused.append(str(error))
        else:
            for point in scalars(found):
                assert isinstance(point.curve, str)
    assert len(refused) >= 6
    assert all(said.startswith(f"{path}: line 2: is no record: ") for said in refused)


def test_a_loss_without_the_samples_behind_it_is_no_record(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps(RECORDS[3] | {"loss": 2.5}) + "\n")
    with pytest.raises(InvalidInput, match="line 1: is no record: needs both loss and samples"):
        read_metrics(path)


@contextlib.contextmanager
def no_room_beyond(size):
    """A file cannot grow beyond so many bytes: a write that would is cut short, and the next one refused."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_line_that_the_disk_refuses_is_lost_as_a_whole(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with MetricsWriter(path) as writer:
        writer.write("a", 1.0)
        assert writer.take_lost() == (0, None)
        with no_room_beyond(path.stat().st_size + 5):
            writer.write("b", 2.0)
            writer.write("c", 3.0)
            lost, reason = writer.take_lost()
            assert (lost, bool(reason)) == (2, True)
        writer.write("d", 4.0)
        assert writer.take_lost() == (0, None)
    assert [record["kind"] for record in read_metrics(path)] == ["a", "d"]


def test_a_folder_in_its_place_is_named(tmp_path):
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(InvalidInput, match=r"metrics\.jsonl: cannot be written: Is a directory"):
        MetricsWriter(tmp_path / "metrics.jsonl")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read: No such file"),
        (b"\xff\n", "is not UTF-8"),
        (b"[" * 100_000 + b"\n", "line 1: is not JSON"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, content, said):
    path = tmp_path / "metrics.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidInput, match=f"metrics.jsonl: {said}"):
        read_metrics(path)


def test_an_empty_file(tmp_path):
    path = tmp_path / "metrics.jsonl"
    MetricsWriter(path).close()
    assert read_metrics(path) == []


def test_the_last_record_of_each_kind_is_found_from_the_end(tmp_path):
    """The file is longer than the pieces that it is read in, and its last line is not whole."""
    path = tmp_path / "metrics.jsonl"
    lines = [f'{{"kind":"phase","at_s":{number},"name":"{"x" * 900}","detail":""}}\n' for number in range(3000)]
    evaluated = '{"kind":"evaluated","at_s":5,"samples":8,"loss":1.5,"metrics":{},"final":false}\n'
    path.write_text(evaluated + "".join(lines) + '{"kind":"evaluated","at_s":9')
    found = last_records(path, ("phase", "evaluated", "round"))
    assert {kind: record["at_s"] for kind, record in found.items()} == {"phase": 2999, "evaluated": 5}
    assert found["evaluated"]["loss"] == 1.5


def test_what_happened_long_ago_is_found_in_the_history(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    monkeypatch.setattr("ravnest.driver.observe.metrics_file.MOST_READ_BYTES", 2 * 1024 * 1024)
    with MetricsWriter(path) as writer:
        writer.write("phase", 0.0, name="training", detail="")
        for second in range(30):
            writer.write("progress", second, samples=second, clusters=[], padding="x" * 100_000)
    found = last_records(path, ("phase", "progress", "evaluated"))
    assert {kind: record["at_s"] for kind, record in found.items()} == {"phase": 0.0, "progress": 29}
    (tmp_path / "history.jsonl").unlink()
    assert list(last_records(path, ("phase", "progress"))) == ["progress"]


def test_a_file_of_one_line_of_half_a_line_and_none_are_read_from_the_end(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert last_records(path, ("phase",)) == {}
    path.write_text("")
    assert last_records(path, ("phase",)) == {}
    path.write_text('{"kind":"phase","at_s":1')
    assert last_records(path, ("phase",)) == {}
    path.write_text('{"kind":"phase","at_s":1}\n')
    assert last_records(path, ("phase",)) == {"phase": {"kind": "phase", "at_s": 1}}


def test_the_last_record_is_the_last_whole_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert last_record(path) is None
    path.write_text('{"kind":"a","at_s":1}\n{"kind":"b","at_s":2}\n{"kind":"tor')
    assert last_record(path) == {"kind": "b", "at_s": 2}
    path.write_text("nonsense\n")
    assert last_record(path) is None


def test_a_damaged_record_of_a_wanted_kind_is_told_with_its_file(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"kind":"phase","at_s":"now"}\n')
    assert last_records(path, ("progress",)) == {}
    with pytest.raises(InvalidInput, match="is no record") as caught:
        last_records(path, ("phase",))
    assert caught.value.path == str(path)


def test_an_event_comes_back_from_its_record():
    event = CheckpointWrittenEvent(Path("here"), 3)
    record = {"kind": kind_of(event), "at_s": 1.0, **as_plain(event)}
    assert event_of(record) == event
    assert event_of({"kind": "update", "at_s": 1.0}) is None
    with pytest.raises(InvalidInput, match="is no checkpoint"):
        event_of({**record, "round": "three"})
    assert record_of('{"kind":"x","at_s":1}') == {"kind": "x", "at_s": 1}
    with pytest.raises(InvalidInput, match="is not JSON"):
        record_of("junk")


def test_the_evaluation_of_a_run_that_has_diverged_is_read_back(tmp_path):
    with MetricsWriter(tmp_path / "metrics.jsonl") as writer:
        writer.write("evaluated", 1.0, **as_plain(EvaluatedEvent(10, math.nan, {"accuracy": math.nan}, final=False)))
    (record,) = read_metrics(tmp_path / "metrics.jsonl")
    event = event_of(record)
    assert math.isnan(event.loss)
    assert math.isnan(event.metrics["accuracy"])
    with pytest.raises(InvalidInput, match="is no evaluated"):
        event_of({"kind": "evaluated", "at_s": 1.0, "loss": None})
