"""What experiments leave behind: files made from stored parts, each part replaced alone."""

import json
import math
from dataclasses import replace

import pytest

from experiments.harness.report import Claim, Panel, Part, Report, Series, Table, machine, median, spread

ORDER = ["speed", "size"]


def part(name: str, held: bool | None = True, measured: str = "1.4×") -> Part:
    return Part(
        name=name,
        title=f"The {name}",
        claims=[Claim("c", f"{name} is right", ">= 1", measured, held)],
        tables=[Table("figures", ["a|b", "n"], [["x | y", 0.123456], [None, 7]])],
        panels=[
            Panel(
                "lines", "x", "y", [Series("s", [1, 10], [1.0, 2.0], [0.5, 1.5], [1.5, 4.0])], log_x=True, target=1.0
            ),
            Panel("bars", "x", "y", [Series("s", ["one", "two"], [1.0, 2.0]), Series("t", ["one", "two"], [2.0, 3.0])]),
        ],
        notes=["How it was measured."],
    )


def record(report: Report, one: Part, *, order: list[str] = ORDER, **changes: object) -> None:
    given = {"command": f"run {one.name}", "machine": {"cpu": "z80"}, "seconds": 1.23, "order": order}
    report.record(one, **{**given, **changes})  # type: ignore[arg-type]


def test_all_three_files_hold_what_was_recorded(tmp_path):
    report = Report(tmp_path / "out", "An experiment", "It asks.")
    record(report, part("speed", held=False))
    text = (tmp_path / "out/RESULT.md").read_text()
    assert "| speed | **c**: speed is right | >= 1 | 1.4× | **not held** |" in text
    assert "| x \\| y | 0.1235 |" in text
    assert "| – | 7 |" in text
    assert "`run speed`" in text
    assert "cpu: z80" in text
    assert "How it was measured." in text
    stored = json.loads((tmp_path / "out/result.json").read_text())
    assert stored["parts"]["speed"]["claims"][0]["held"] is False
    assert stored["parts"]["speed"]["command"] == "run speed"
    assert (tmp_path / "out/result.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["RESULT.md", "result.json", "result.png"]


def test_without_anything_to_draw_there_is_no_picture(tmp_path):
    record(Report(tmp_path, "An experiment", ""), replace(part("speed"), panels=[]))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["RESULT.md", "result.json"]
    assert "result.png" not in (tmp_path / "RESULT.md").read_text()


def test_a_figure_that_is_not_finite_is_written_in_words(tmp_path):
    report = Report(tmp_path, "An experiment", "")
    record(report, replace(part("speed"), tables=[Table("figures", ["n"], [[math.inf], [1.0]])]))
    assert json.loads((tmp_path / "result.json").read_text())["parts"]["speed"]["tables"][0]["rows"] == [["inf"], [1.0]]
    assert "| inf |" in (tmp_path / "RESULT.md").read_text()


def test_a_part_run_again_replaces_its_own_result_and_keeps_the_others(tmp_path):
    record(Report(tmp_path, "An experiment", ""), part("size", measured="old size"))
    record(Report(tmp_path, "An experiment", ""), part("speed", measured="old speed"), machine={"cpu": "6502"})
    later = Report(tmp_path, "An experiment", "")
    record(later, part("speed", measured="new speed"))
    text = (tmp_path / "RESULT.md").read_text()
    assert "old size" in text
    assert "new speed" in text
    assert "old speed" not in text
    assert "6502" not in text
    assert list(later.document["parts"]) == ORDER  # in their order, not in that of running


def test_what_another_run_of_the_experiment_wrote_meanwhile_stays(tmp_path):
    slow, quick = Report(tmp_path, "An experiment", ""), Report(tmp_path, "An experiment", "")
    record(quick, part("size", measured="meanwhile"))
    record(slow, part("speed", measured="in the end"))
    text = (tmp_path / "RESULT.md").read_text()
    assert "meanwhile" in text
    assert "in the end" in text


def test_a_part_that_no_longer_exists_is_dropped(tmp_path):
    record(Report(tmp_path, "An experiment", ""), part("size"))
    report = Report(tmp_path, "An experiment", "")
    record(report, part("speed"), order=["speed"])
    assert list(report.document["parts"]) == ["speed"]


def test_what_cannot_be_written_leaves_the_last_results(tmp_path):
    report = Report(tmp_path, "An experiment", "")
    record(report, part("speed"))
    before = (tmp_path / "result.json").read_text()
    broken = Part("speed", "The speed", [], panels=[Panel("p", "x", "y", [Series("s", [1.0], [math.nan])])])
    with pytest.raises(ValueError, match="not JSON compliant"):
        record(report, broken)
    assert (tmp_path / "result.json").read_text() == before
    assert len(list(tmp_path.iterdir())) == 3


def test_what_was_not_measured_is_said_so(tmp_path):
    record(Report(tmp_path, "An experiment", ""), part("speed", held=None, measured="no lab"))
    assert "| no lab | not measured |" in (tmp_path / "RESULT.md").read_text()


def test_medians_and_spreads():
    assert median([3.0, 1.0, 2.0]) == 2.0
    assert median([4.0, 1.0, 2.0, 3.0]) == 2.5
    assert spread([0.25, 0.125, 0.5]) == "0.25 (0.125–0.5)"


def test_the_machine_is_described():
    here = machine()
    assert here.keys() >= {"cpu", "memory", "python", "torch", "commit", "load before (1, 5, 15 min)"}
    assert all(here.values())
