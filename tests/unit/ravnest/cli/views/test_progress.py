from dataclasses import replace
from io import StringIO

from rich.console import Console

from ravnest.cli.views.progress import LiveView, time_left_s
from ravnest.driver.observe.report import EvaluatedEvent, PhaseEvent, ProgressEvent, RoundCommittedEvent


def test_time_left_is_at_the_present_rate(progress: ProgressEvent) -> None:
    assert time_left_s(progress) == 16000 / 80
    assert time_left_s(replace(progress, samples=20100)) == 0
    assert time_left_s(replace(progress, total_samples=None)) is None
    assert time_left_s(replace(progress, clusters=())) is None


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


def test_evaluations_stay_on_the_screen() -> None:
    out = StringIO()
    console = Console(file=out, width=100)
    with LiveView(console) as view:
        view.on(EvaluatedEvent(4000, 2.345, {}, final=False))
    assert "held-out loss after 4,000 samples: 2.345" in out.getvalue()
