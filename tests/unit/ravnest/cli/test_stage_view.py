from dataclasses import replace
from io import StringIO

from rich.console import Console

from ravnest.cli.stage_view import stages_table
from ravnest.launch.report import StageFigures, StageMemory, TimeShares

SHARES = TimeShares(
    seconds=10.0,
    compute=0.75,
    forward=0.25,
    backward=0.45,
    update=0.05,
    averaging=0.02,
    evaluation=0.0,
    handoff=0.03,
    bubble=0.2,
    waiting={"input": 0.001, "window": 0.149, "staleness": 0.05},
)


def shown(*figures: StageFigures) -> str:
    out = StringIO()
    Console(file=out, width=120).print(stages_table(figures))
    return out.getvalue()


def test_one_row_a_stage_with_what_it_waited_for() -> None:
    text = shown(StageFigures("a.s0", "desk", SHARES, replace(SHARES, compute=0.5)))
    assert "steady state" in text
    row = " ".join(text.splitlines()[-1].split())
    assert row == "a.s0 desk 75.0% 2.0% 0.0% 3.0% 20.0% window 15%, staleness 5%"


def test_a_run_too_short_for_a_steady_state_shows_all_of_it() -> None:
    text = shown(StageFigures("a.s0", "desk", None, SHARES), StageFigures("a.s1", "laptop", SHARES, SHARES))
    assert "whole run, fill and drain included" in text
    assert "desk" in text


def test_tensors_are_shown_beside_the_plan() -> None:
    memory = StageMemory(planned_bytes=2_000_000, tensor_bytes=1_900_000, parts={"weights": 1_900_000})
    assert "1.9 MB (95% of plan)" in shown(StageFigures("a.s0", "desk", SHARES, SHARES, memory))


def test_a_stage_that_told_nothing_has_no_row() -> None:
    assert "a.s1" not in shown(StageFigures("a.s0", "desk", SHARES, SHARES), StageFigures("a.s1", "laptop", None, None))
