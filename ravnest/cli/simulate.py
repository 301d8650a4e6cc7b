"""`ravnest simulate`: runs a plan under a virtual clock, in minutes instead of days, without machines, model or job.

In: the command's options. Out: a bar while it works, then tables, or with --json the result as one document; with
--out that document and a picture. Everything else is `ravnest.simulate`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

_LEAST_BAR, _WIDEST_BAR, _BESIDE_BAR = 4, 40, 72
"""Columns of the bar, and of what stands beside it at most, with some millions of events."""


def simulate(
    plan: Annotated[Path, typer.Argument(metavar="PLAN_YAML", help="What `ravnest plan` wrote.")] = Path("plan.yaml"),
    hours: Annotated[
        float | None,
        typer.Option(
            help="Virtual hours of training; without it and --samples: until the job's own end, within limits."
        ),
    ] = None,
    samples: Annotated[int | None, typer.Option(help="End after so many samples of the fleet instead.")] = None,
    seed: Annotated[int, typer.Option(help="Of all that chance decides; the same seed gives the same figures.")] = 0,
    scenario: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Jitter, stalls and changes of bandwidth: see docs/file-formats.md."),
    ] = None,
    jitter: Annotated[
        float | None,
        typer.Option(help="How much computations vary: standard deviation over mean. Replaces the scenario's."),
    ] = None,
    link_jitter_ms: Annotated[
        float | None,
        typer.Option(help="Up to how much later a message comes by chance. Replaces the scenario's."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write simulated.json and simulated.png there."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON document.")] = False,
) -> None:
    """Simulate the plan's run: throughput, utilisation, staleness, time lost by cause.

    Goes on until the job's own end (an hour where it ends after epochs), but no farther than some 5 million events \
reach, up to a minute or so; --samples and --hours are kept to, however long they take. Ctrl-C ends it with the \
figures so far.
    """
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    import ravnest
    from ravnest.cli.views.progress import note
    from ravnest.cli.views.steps import Steps
    from ravnest.cli.views.tables import console
    from ravnest.driver.signals import StopOnInterrupt
    from ravnest.errors import InvalidInput
    from ravnest.files import require_writable
    from ravnest.formatting import duration

    if out is not None and out.exists() and not out.is_dir():
        raise InvalidInput("is a file; expected a folder", path=str(out), key="out")
    if out is not None:
        require_writable(out / "simulated.json", "--out")
    shown = TextColumn("{task.percentage:.0f}%  {task.fields[at]}  left:")
    shown_on = console(stderr=True)
    bar = BarColumn(bar_width=max(_LEAST_BAR, min(_WIDEST_BAR, shown_on.width - _BESIDE_BAR)))
    columns = (TextColumn("simulating"), bar, shown, TimeRemainingColumn(compact=True))
    with (
        Progress(*columns, console=shown_on, transient=True, disable=as_json or not shown_on.is_terminal) as progress,
        Steps(console(stderr=True, quiet=as_json or shown_on.is_terminal)) as steps,
        StopOnInterrupt() as interrupt,
    ):
        task = progress.add_task("", total=1.0, at="")
        steps.begin("simulating")

        def on_progress(done: float, now_s: float, events: int) -> None:
            interrupt.gracefully = True  # from now on there are figures to show
            steps.done(done)
            progress.update(task, completed=done, at=f"{duration(now_s)} simulated, {events:,} events")

        result = ravnest.simulate(
            plan,
            hours=hours,
            samples=samples,
            seed=seed,
            scenario=scenario,
            jitter=jitter,
            link_jitter_ms=link_jitter_ms,
            progress=on_progress,
            stop=lambda: interrupt.wanted,
            warn=note,
        )
    from cluster_planner import predicted_again
    from ravnest.simulator import as_plain

    made = predicted_again(ravnest.load_plan(plan))
    document = {"plan": str(plan), **as_plain(result)}
    if out is not None:
        _write(document, out)
        from ravnest.pictures import draw_simulation

        picture = out / "simulated.png"
        draw_simulation(result, made.predicted.samples_per_s, picture, steady=result.too_short is None)
    if as_json:
        json.dump(document, sys.stdout, indent=2, allow_nan=False)
        sys.stdout.write("\n")
    else:
        from ravnest.cli.views.simulation import show_simulation

        show_simulation(result, made, console(soft_wrap=True), result.ended, result.unreached)
        if out is not None:
            console(soft_wrap=True).print(f"\nWrote [bold]{out / 'simulated.json'}[/bold] and its picture.")
    if result.stopped_early:
        raise typer.Exit(ravnest.Interrupted.exit_code)


def _write(document: object, out: Path) -> None:
    from ravnest.errors import InvalidInput

    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "simulated.json").write_text(json.dumps(document, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"cannot be written: {error.strerror}", path=str(out), key="out") from None
