from pathlib import Path

from matplotlib.image import imread

from ravnest.driver.observe.metrics_file import MetricsWriter, read_metrics
from ravnest.driver.observe.report import (
    EvaluatedEvent,
    NoticeEvent,
    ProgressEvent,
    as_plain,
    kind_of,
)
from ravnest.pictures import draw_comparison, draw_loss_curve, loss_figure


def drawn_share(path: Path) -> float:
    """The share of an image's pixels that are not white."""
    pixels = imread(path)
    return float((pixels[:, :, :3] < 0.99).any(axis=2).mean())


def test_losses_are_drawn_from_the_lines_of_a_run(progress: ProgressEvent, tmp_path: Path) -> None:
    events = [
        progress,
        EvaluatedEvent(4000, 2.4, {}, final=False),
        NoticeEvent("words"),
        EvaluatedEvent(8000, 2.1, {}, final=True),
    ]
    with MetricsWriter(tmp_path / "metrics.jsonl") as writer:
        for event in events:
            writer.write(kind_of(event), 1.0, **as_plain(event))
    draw_loss_curve(read_metrics(tmp_path / "metrics.jsonl"), {"bigram model": 2.32}, tmp_path / "loss.png")
    assert drawn_share(tmp_path / "loss.png") > 0.01


def test_what_a_resumed_run_makes_anew_is_drawn_once() -> None:
    first, again = (
        [{"kind": "evaluated", "samples": samples, "loss": loss} for samples in range(begin, 9000, 1000)]
        for begin, loss in ((1000, 9.0), (4000, 1.0))
    )
    (line,) = loss_figure([*first, *again], {}).axes[0].get_lines()
    assert list(line.get_ydata()) == [9.0] * 3 + [1.0] * 5


def test_a_run_with_nothing_to_show_still_has_a_picture(tmp_path: Path) -> None:
    draw_loss_curve([], {}, tmp_path / "loss.png")
    assert drawn_share(tmp_path / "loss.png") > 0


def test_several_runs_are_drawn_in_one_picture_and_one_without_a_loss_is_left_out(tmp_path: Path) -> None:
    draw_comparison({"a": (((8, 2.0), (16, 1.0)), ((16, 1.5),)), "b": ((), ())}, tmp_path / "both.png")
    draw_comparison({"b": ((), ())}, tmp_path / "none.png")
    assert imread(tmp_path / "both.png").std() > imread(tmp_path / "none.png").std() > 0
