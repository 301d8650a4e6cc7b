from dataclasses import replace
from io import StringIO

from rich.console import Console

from ravnest.cli.views.result import stages_tables
from ravnest.driver.observe.report import StageFigures, StageMemory, TimeShares

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


def shown(*figures: StageFigures, width: int = 80) -> str:
    out = StringIO()
    Console(file=out, width=width, soft_wrap=True).print(stages_tables(figures))
    return out.getvalue()


def test_one_row_a_stage_with_what_it_waited_for() -> None:
    text = shown(StageFigures("a.s0", "desk", SHARES, replace(SHARES, compute=0.5)))
    assert "steady state" in text
    rows = [" ".join(line.split()) for line in text.splitlines() if line.startswith("a.s0")]
    assert rows == ["a.s0 desk 75.0% 2.0% 0.0% 3.0% 20.0%", "a.s0 desk window 15%, staleness 5% –"]


def test_a_run_too_short_for_a_steady_state_shows_all_of_it() -> None:
    text = shown(StageFigures("a.s0", "desk", None, SHARES), StageFigures("a.s1", "laptop", SHARES, SHARES))
    assert "whole run, fill and drain included" in text
    assert "desk" in text


def test_tensors_are_shown_beside_the_plan() -> None:
    memory = StageMemory(planned_bytes=2_000_000, tensor_bytes=1_900_000, parts={"weights": 1_900_000})
    assert "1.9 MB (95% of plan)" in shown(StageFigures("a.s0", "desk", SHARES, SHARES, memory))


def test_nothing_is_cut_off_in_80_columns() -> None:
    memory = StageMemory(planned_bytes=2_000_000, tensor_bytes=1_900_000, parts={"weights": 1_900_000})
    name = "the-raspberry-pi-in-the-cellar"
    text = shown(StageFigures("c0.s0", "desk", SHARES, SHARES, memory), StageFigures("c10.s11", name, SHARES, SHARES))
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    for word in ("stage", "node", "compute", "averaging", "evaluation", "handing over", "bubble", "tensors", "c10.s11"):
        assert word in text
    assert shown(StageFigures("c0.s0", name, SHARES, SHARES), width=100).count(name) == 2  # whole, where there is room


def test_a_stage_that_told_nothing_has_no_row() -> None:
    assert "a.s1" not in shown(StageFigures("a.s0", "desk", SHARES, SHARES), StageFigures("a.s1", "laptop", None, None))


def test_each_table_says_what_its_columns_mean() -> None:
    text = " ".join(shown(StageFigures("a.s0", "desk", SHARES, SHARES), width=120).split())
    for word in (
        "a row adds up to 100%",
        "handing over: between",
        "bubble: waiting",
        "input (another stage)",
        "tensors: ",
    ):
        assert word in text
