from dataclasses import replace
from io import StringIO
from pathlib import Path

from rich.console import Console

from ravnest.cli.views.comparison import show_comparison
from ravnest.results.comparing import ComparedRun, Comparison

RUN = ComparedRun(Path("runs/first"), "finished", 800, 7.0, ((800, 3.3),), ((400, 3.0), (800, 3.5)))
EMPTY = ComparedRun(Path("runs/20260131-120000-with-a-long-name"), "killed", 0, 0.0, (), ())


def shown(found: Comparison) -> str:
    out = StringIO()
    show_comparison(found, Console(file=out, width=80))
    assert "…" not in out.getvalue()
    assert max(map(len, out.getvalue().splitlines())) <= 80
    return out.getvalue()


def test_runs_settings_and_losses_stand_beside_each_other() -> None:
    found = Comparison((RUN, EMPTY), {"job.optimizer.lr": (0.1, None)}, ((800, (3.3, None)),))
    rows = [line.split() for line in shown(found).splitlines()]
    assert ["A", "runs/first"] in rows
    assert ["A", "finished", "800", "7.0", "s", "114", "3.500,", "3.000"] in rows
    assert ["job.optimizer.lr", "0.1", "–"] in rows
    assert ["800", "3.300", "–"] in rows


def test_a_long_key_is_broken_at_its_dots_alone() -> None:
    key, long = "job.optimizer.schedule.warmup_updates", "job.averaging.outer.nesterov." + "a_long_name_" * 3 + "end"
    text = shown(Comparison((RUN, EMPTY), {key: (10, 20), long: ("x" * 60, "y" * 60)}, ()))
    lines = [line.rstrip() for line in text.splitlines()]
    assert any(line.startswith(f"{key}  10") or line.startswith(f"{key} ") for line in lines)
    begin = next(at for at, line in enumerate(lines) if line.startswith("job.averaging.outer.nesterov."))
    assert lines[begin + 1].split()[0] == long.rpartition(".")[2]


def test_runs_of_the_same_settings_that_never_trained_say_so() -> None:
    text = shown(Comparison((EMPTY, replace(EMPTY, path=Path("b"))), {}, ()))
    assert "Their settings do not differ." in text
    assert "training loss" not in text
