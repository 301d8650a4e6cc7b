from dataclasses import replace
from io import StringIO
from pathlib import Path

from rich.console import Console

from ravnest.cli.views.run_state import show_runs, show_status
from ravnest.driver.observe.report import ProgressEvent
from ravnest.results.run_state import RunState

KILLED = RunState(
    path=Path("runs/first"),
    state="killed",
    is_rehearsal=True,
    owner="process 7 on 'desk', since 2026-01-31",
    phase=None,
    progress=None,
    held_out_loss=None,
    held_out_samples=None,
    checkpoint="checkpoint-000002",
    checkpoint_age_s=90.0,
    silent_s=None,
    logs=("ray.log",),
)


def test_a_run_that_was_killed_before_it_trained_shows_what_there_is() -> None:
    out = StringIO()
    show_status(KILLED, Console(file=out, width=80, soft_wrap=True))
    lines = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    assert lines[0].startswith("state killed: its process ended without a word")
    assert lines[0].endswith("(a rehearsal)")
    assert "checkpoint runs/first/checkpoints/checkpoint-000002, 1 min 30 s ago" in lines
    assert "wrote last –" in lines
    assert "logs runs/first/logs/ray.log" in lines


def test_it_is_told_in_whole_seconds_how_long_ago_something_was() -> None:
    for silent_s, said in ((0.0616, "just now"), (1.26, "1 s ago"), (59.2, "59 s ago"), (75.0, "1 min 15 s ago")):
        out = StringIO()
        show_status(replace(KILLED, silent_s=silent_s), Console(file=out, width=80, soft_wrap=True))
        assert f"wrote last  {said}" in out.getvalue()


def test_why_a_run_has_failed_stands_below_its_state() -> None:
    out = StringIO()
    show_status(replace(KILLED, state="failed", reason="desk is silent"), Console(file=out, width=80, soft_wrap=True))
    assert "why desk is silent" in [" ".join(line.split()) for line in out.getvalue().splitlines()]


def test_the_seconds_of_a_resumed_run_stand_beside_the_samples_that_were_made_in_them() -> None:
    progress = ProgressEvent(40.0, 4000, 8000, (), session_samples=1000)
    for told, words in (
        (progress, "samples 4,000 of 8,000; 1,000 since it was resumed, in 40.0 s"),
        (replace(progress, session_samples=4000), "samples 4,000 of 8,000 in 40.0 s"),
        (replace(progress, session_samples=None), "samples 4,000 of 8,000 in 40.0 s"),
    ):
        out = StringIO()
        show_status(replace(KILLED, progress=told), Console(file=out, width=80, soft_wrap=True))
        assert words in [" ".join(line.split()) for line in out.getvalue().splitlines()]


def test_a_table_of_runs_fits_80_columns_and_explains_only_the_states_that_it_has() -> None:
    out = StringIO()
    show_runs([KILLED, replace(KILLED, state="stopped", is_rehearsal=False)], Console(file=out, width=80))
    text = out.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    assert "2 runs" in text
    out.truncate(0)
    show_runs([replace(KILLED, path=Path("a/long/path") / ("name" * 20))], Console(file=out, width=80))
    assert "…" not in out.getvalue()
    assert "killed (rehearsal)" in out.getvalue()
    assert "killed (rehearsal)" in text
    assert "stopped: it was stopped with a checkpoint" in " ".join(text.split())
    assert "failed:" not in text
