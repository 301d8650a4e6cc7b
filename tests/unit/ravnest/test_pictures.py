import json
from pathlib import Path

import pytest
from matplotlib.image import imread

from cluster_planner.plan import Plan
from ravnest.errors import InvalidInput
from ravnest.launch.report import Evaluated, Notice, Progress, as_record
from ravnest.pictures import draw_loss_curve, draw_plan, read_records


def drawn_share(path: Path) -> float:
    """The share of an image's pixels that are not white."""
    pixels = imread(path)
    return float((pixels[:, :, :3] < 0.99).any(axis=2).mean())


def test_a_plan_is_drawn(plan: Plan, tmp_path: Path) -> None:
    draw_plan(plan, tmp_path / "plan.png")
    assert drawn_share(tmp_path / "plan.png") > 0.3
    assert [path.name for path in tmp_path.iterdir()] == ["plan.png"]


def test_losses_are_drawn_from_the_lines_of_a_run(progress: Progress, tmp_path: Path) -> None:
    events = [
        progress,
        Evaluated(4000, 2.4, {}, final=False),
        Notice("words"),
        Evaluated(8000, 2.1, {}, final=True),
    ]
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text("".join(json.dumps(as_record(event, 1.0)) + "\n" for event in events))
    records = read_records(metrics)
    assert [record["kind"] for record in records] == ["progress", "evaluated", "notice", "evaluated"]
    draw_loss_curve(records, {"bigram model": 2.32}, tmp_path / "loss.png")
    assert drawn_share(tmp_path / "loss.png") > 0.01


def test_a_run_with_nothing_to_show_still_has_a_picture(tmp_path: Path) -> None:
    draw_loss_curve([], {}, tmp_path / "loss.png")
    assert drawn_share(tmp_path / "loss.png") > 0


@pytest.mark.parametrize("line", ["{", "[]", '{"at_s": 1}'])
def test_a_broken_line_is_named(line: str, tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text(f'{{"kind": "notice"}}\n{line}\n')
    with pytest.raises(InvalidInput, match="line 2"):
        read_records(metrics)
