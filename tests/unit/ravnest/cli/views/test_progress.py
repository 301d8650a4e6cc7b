from collections.abc import Callable
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from ravnest.cli.views.progress import LiveView, PlainView, RecentLosses, note, time_left_s, warning
from ravnest.driver.observe.report import EvaluatedEvent, NoticeEvent, PhaseEvent, ProgressEvent, RoundCommittedEvent


def test_time_left_is_at_the_present_rate(progress: ProgressEvent) -> None:
    assert time_left_s(progress) == 16000 / 80
    assert time_left_s(replace(progress, samples=20100)) == 0
    assert time_left_s(replace(progress, total_samples=None)) is None
    assert time_left_s(replace(progress, clusters=())) is None
    assert time_left_s(replace(progress, stop_s=70.0)) == 5.0  # it ends by time before that
    assert time_left_s(replace(progress, clusters=(), stop_s=100.0)) == 35.0


def test_it_shows_the_phase_then_each_cluster(progress: ProgressEvent) -> None:
    console = Console(file=StringIO(), width=110, force_terminal=False)
    view = LiveView(console)
    view.on(PhaseEvent("starting Ray"))
    with console.capture() as capture:
        console.print(view.render())
    assert capture.get().strip() == "starting Ray"
    view.on(progress)
    view.on(RoundCommittedEvent(7, 3600))
    with console.capture() as capture:
        console.print(view.render())
    text = capture.get()
    assert [line.split()[0] for line in text.splitlines()[:3]] == ["cluster", "c0", "c1"]
    assert "2.457" in text
    assert "4,000 of 20,000 samples · round 7 · 1 min 05 s, 3 min 20 s left" in text


def test_the_bar_of_a_run_that_ends_by_time_fills_with_the_time(progress: ProgressEvent) -> None:
    console = Console(file=StringIO(), width=110)
    view = LiveView(console)
    view.on(replace(progress, total_samples=None, stop_s=4 * progress.elapsed_s))
    with console.capture() as capture:
        console.print(view.render())
    assert "4,000 samples · round 7 · 1 min 05 s, 3 min 15 s left" in capture.get()
    assert 7 <= capture.get().count("━") <= 8, "a quarter of 30"


def test_the_loss_is_a_mean_over_seconds_and_stays_while_there_is_no_new_one(progress: ProgressEvent) -> None:
    recent = RecentLosses()

    def shown(at_s: float, loss: float | None) -> float | None:
        first = replace(progress.clusters[0], loss=loss)
        return recent.shown(replace(progress, elapsed_s=at_s, clusters=(first,))).clusters[0].loss

    assert [shown(1, None), shown(2, 4.0), shown(3, 2.0), shown(10, None)] == [None, 4.0, 3.0, 3.0]
    assert shown(17.5, None) == 2.0  # the first one is too long ago
    assert shown(300, None) == 2.0
    assert shown(301, 1.0) == 1.0


def test_a_resumed_run_shows_the_round_that_it_goes_on_from(progress: ProgressEvent) -> None:
    console = Console(file=StringIO(), width=110)
    view = LiveView(console)
    view.on(progress)
    with console.capture() as capture:
        console.print(view.render())
    assert "samples · round 7 ·" in capture.get()


def test_evaluations_stay_on_the_screen() -> None:
    out = StringIO()
    console = Console(file=out, width=100)
    with LiveView(console) as view:
        view.on(EvaluatedEvent(4000, 2.345, {}, final=False))
    assert "held-out loss after 4,000 samples: 2.345" in out.getvalue()


@pytest.mark.parametrize("tell", [note, warning])
def test_a_note_is_broken_between_words_on_a_terminal_and_nowhere_else(
    tell: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said, screen = "a warning that no terminal has room for in one line " * 3 + "and/a/path/that/is/copied", StringIO()
    tell(said)
    assert capsys.readouterr().err.endswith(f" {said}\n")
    monkeypatch.setattr(
        "ravnest.cli.views.progress.console", lambda **_: Console(file=screen, force_terminal=True, width=40)
    )
    tell(said)
    lines = screen.getvalue().splitlines()
    assert max(map(len, lines)) <= 40
    assert lines[-1].endswith("and/a/path/that/is/copied")


def test_what_a_stage_elsewhere_says_does_nothing_to_a_terminal() -> None:
    out = StringIO()
    PlainView(Console(file=out, width=100)).on(NoticeEvent("b0 cannot give c0.s1 its state: \x1b]0;title\x07"))
    assert out.getvalue() == "b0 cannot give c0.s1 its state: ?]0;title?\n"
