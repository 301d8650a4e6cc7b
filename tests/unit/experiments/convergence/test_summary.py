"""The one-page report is made from what the parts left, claims and pictures included."""

from dataclasses import asdict

import pytest
from matplotlib.figure import Figure

from experiments.convergence import summary
from experiments.convergence.__main__ import PARTS
from experiments.harness.report import Claim, Panel, Part, Report, Series, draw_panel


def test_it_names_every_claim_and_what_was_not_held(tmp_path):
    report = Report(tmp_path / "results", "Theory tested", "Intro.")
    panel = Panel("Blocks: quadratic", "step", "error", [Series("measured", [1.0, 2.0], [3.0, 4.0])])
    claims = [Claim("good", "a|b", "< 1", "0.5", True), Claim("bad", "c", "< 1", "2", False)]
    claims.append(Claim("absent", "d", "< 1", "nothing", None))
    part = Part("blocks", "Blocks", claims, panels=[panel])
    report.record(part, command="run it", machine={"commit": "abc"}, seconds=1.0, order=["blocks"])
    page = tmp_path / "docs" / summary.PAGE
    summary.write(tmp_path / "results", page)
    text = page.read_text(encoding="utf-8")
    assert "1 of 3 checks held; not held: “bad”; not measured: “absent”." in text
    assert "| **good**: a\\|b | < 1 | 0.5 | ✓ |" in text
    assert "../results/RESULT.md" in text
    assert "`run it`" in text
    assert "How fast" not in text, "parts that were not run are left out"
    assert (page.parent / "convergence-blocks.png").read_bytes().startswith(b"\x89PNG")


def test_ticks_are_where_something_was_tried():
    series = [
        Series("measured", [2.0**power for power in range(6, 17)], [1.0] * 11),
        Series("predicted", [8.06], [1.0]),
    ]
    axes = Figure().add_subplot()
    panel = asdict(Panel("Rate", "K", "error", series, log_x=True))
    draw_panel(axes, panel)
    summary.mark(axes, panel)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["64", "256", "1024", "4096", "16384", "65536"]


def test_a_picture_over_k_has_the_promised_slope_and_says_what_k_is():
    series = [Series("measured", [64.0, 256.0, 1024.0], [0.5, 0.2, 0.1]), Series("bound", [64.0], [9.0])]
    axes = Figure().add_subplot()
    panel = asdict(Panel("Rate", "K", "mean ‖∇f‖²", series, log_x=True, log_y=True))
    draw_panel(axes, panel)
    summary.add_rate(axes, panel)
    summary.name_axes(axes, panel)
    (line,) = [line for line in axes.get_lines() if line.get_label() == "slope −½"]
    assert list(line.get_xdata()) == [64.0, 1024.0]
    assert list(line.get_ydata()) == pytest.approx([0.4, 0.1])  # a sixteenth of the updates: four times the error
    assert axes.get_xlabel() == "K: updates of each cluster"
    assert "slope −½" in [text.get_text() for text in axes.get_legend().get_texts()]


def test_a_picture_over_something_else_has_no_such_line():
    axes = Figure().add_subplot()
    panel = asdict(Panel("Lag", "max_lag", "error", [Series("measured", [1.0, 2.0], [1.0, 2.0])], log_x=True))
    draw_panel(axes, panel)
    before = len(axes.get_lines())
    summary.add_rate(axes, panel)
    assert len(axes.get_lines()) == before


def test_every_panel_that_it_shows_has_a_part():
    assert [question.part for question in summary.QUESTIONS] == list(PARTS)
