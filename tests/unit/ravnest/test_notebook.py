"""The plot of a run in a notebook's cell, against a stand-in of IPython."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from ravnest.driver.observe import report
from ravnest.notebook import DRAW_EVERY_S, MOST_POINTS, LivePlot, in_notebook, observer_here


class Shown:
    """What one place of the cell shows."""

    def __init__(self, content: Any) -> None:
        self.contents = [content]

    def update(self, content: Any) -> None:
        self.contents.append(content)


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> list[Shown]:
    """The places of a notebook's cell."""
    places: list[Shown] = []

    def display(content: Any, display_id: bool) -> Shown:
        assert display_id
        places.append(Shown(content))
        return places[-1]

    shown = SimpleNamespace(display=display, HTML=lambda text: text, Image=lambda data, format: data)  # noqa: A006
    shell = SimpleNamespace(kernel=1, events=SimpleNamespace(register=lambda *_: None))
    module = SimpleNamespace(display=shown, get_ipython=lambda: shell, version_info=(9, 0))
    monkeypatch.setitem(sys.modules, "IPython", module)  # type: ignore[arg-type]
    return places


def progress(samples: int) -> report.ProgressEvent:
    return report.ProgressEvent(
        samples / 100, samples, 4000, (report.ClusterProgress("c0", samples, 100.0, 9.0 / samples, 1, 3, 0),)
    )


def test_a_picture_is_drawn_now_and_then_and_at_the_end(cell: list[Shown]) -> None:
    now_s = [0.0]
    plot = LivePlot(lambda: now_s[0])
    plot.on(report.PhaseEvent("training"))
    picture, words = cell
    assert len(picture.contents) == 1
    assert words.contents[-1] == "phase (name: training)"
    for _ in range(8):
        now_s[0] += DRAW_EVERY_S / 4
        plot.on(progress(int(100 * now_s[0])))
    assert [each[:4] for each in picture.contents[1:]] == [b"\x89PNG"] * 2
    assert words.contents[-1].startswith("600 of 4,000 samples, 100.0 samples/s<br>phase")
    plot.on(report.EvaluatedEvent(700, 1.23456789, {"accuracy": 0.5}, final=True))
    assert len(picture.contents) == 4
    assert "loss: 1.235," in words.contents[-1]
    plot.on(progress(640))
    assert words.contents[-1].startswith("640 of 4,000 samples")


def test_text_from_a_run_is_no_html(cell: list[Shown]) -> None:
    LivePlot().on(report.NoticeEvent("<script>"))
    assert "<script>" not in cell[1].contents[-1]
    assert "&lt;script&gt;" in cell[1].contents[-1]


def test_a_long_run_keeps_a_bounded_number_of_points(cell: list[Shown], monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    monkeypatch.setattr("ravnest.notebook.loss_figure", lambda records, baselines: drawn.append(len(records)))
    monkeypatch.setattr("ravnest.notebook.png_of", lambda figure: b"")
    now_s = [0.0]
    plot = LivePlot(lambda: now_s[0])
    for number in range(1, 5 * MOST_POINTS):
        now_s[0] += DRAW_EVERY_S
        plot.on(progress(number))
    assert MOST_POINTS / 2 <= drawn[-1] <= max(drawn) <= MOST_POINTS


def test_only_a_notebook_has_cells(cell: list[Shown], monkeypatch: pytest.MonkeyPatch) -> None:
    assert in_notebook()
    assert isinstance(observer_here(), LivePlot)
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: None)
    assert not in_notebook()
    assert not isinstance(observer_here(), LivePlot)
    monkeypatch.delitem(sys.modules, "IPython")
    assert not in_notebook()
