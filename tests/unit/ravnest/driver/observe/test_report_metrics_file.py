import math

import pytest

from ravnest.driver.observe.report import MetricsWriter, read_metrics
from ravnest.errors import InvalidInput


def test_lines_come_back(tmp_path):
    path = tmp_path / "run" / "metrics.jsonl"
    with MetricsWriter(path) as writer:
        writer.write("update", 1.23456, loss=2.5, staleness=[0, 1], cluster="c0")
        assert len(read_metrics(path)) == 1  # flushed at once
        writer.write("notice", 2, text="two\nlines \u2028 ü")
    assert read_metrics(path) == [
        {"kind": "update", "at_s": 1.235, "loss": 2.5, "staleness": [0, 1], "cluster": "c0"},
        {"kind": "notice", "at_s": 2, "text": "two\nlines \u2028 ü"},
    ]


def test_numbers_that_json_lacks_become_null(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with MetricsWriter(path) as writer:
        writer.write("evaluated", 0.0, loss=math.nan, metrics={"perplexity": math.inf}, all=(1.0, -math.inf))
    assert read_metrics(path) == [
        {"kind": "evaluated", "at_s": 0.0, "loss": None, "metrics": {"perplexity": None}, "all": [1.0, None]}
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


def test_an_empty_file(tmp_path):
    path = tmp_path / "metrics.jsonl"
    MetricsWriter(path).close()
    assert read_metrics(path) == []
