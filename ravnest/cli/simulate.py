"""`ravnest simulate`: a plan's run under a virtual clock, in minutes instead of days; no machine, model or job needed.

Decides the command's options, where its files go, and what is shown while it works. What is simulated is
ravnest.simulator's.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer


def simulate(
    plan: Annotated[Path, typer.Argument(metavar="[PLAN_YAML]", help="What `ravnest plan` wrote.")] = Path("plan.yaml"),
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
reach, up to a minute or so; --samples and --hours are kept to, however long they take.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from ravnest.cli.plan_file import read_plan
    from ravnest.errors import InvalidInput, naming

    if hours is not None and samples is not None:
        raise InvalidInput("--hours and --samples say when to end: give one of them", key="--samples")
    if hours is not None and not 0 < 3600 * hours < float("inf"):
        raise InvalidInput(f"must be a finite number above 0, not {hours:g}", key="--hours")
    if samples is not None and samples < 1:
        raise InvalidInput(f"must be at least 1, not {samples}", key="--samples")
    if out is not None and out.exists() and not out.is_dir():
        raise InvalidInput("is a file; expected a folder", path=str(out), key="--out")
    _, made = read_plan(plan)  # before torch is imported: what is wrong with the file is told at once
    from ravnest.formatting import duration
    from ravnest.planning.workload import check_job_of_plan
    from ravnest.simulator import Scenario, as_plain
    from ravnest.simulator import simulate as run_simulation
    from ravnest.simulator.scenario import load_scenario
    from ravnest.simulator.simulate import SimulationLength, default_length
    from ravnest.simulator.simulated_run import too_short

    check_job_of_plan(made, plan)
    given = Scenario() if scenario is None else load_scenario(scenario)
    for option, value in (("--jitter", jitter), ("--link-jitter-ms", link_jitter_ms)):
        if value is not None and not 0 <= value < float("inf"):
            raise InvalidInput(f"must be a finite number, 0 or more, not {value:g}", key=option)
    if jitter is not None:
        given = replace(given, compute_jitter=jitter)
    if link_jitter_ms is not None:
        given = replace(given, link_jitter_s=link_jitter_ms / 1000)
    shown = TextColumn("{task.percentage:.0f} %  {task.fields[at]}  left:")
    columns = (TextColumn("simulating"), BarColumn(), shown, TimeRemainingColumn(compact=True))
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=as_json or not console.is_terminal) as progress:
        task = progress.add_task("", total=1.0, at="")

        def on_progress(done: float, now_s: float, events: int) -> None:
            progress.update(task, completed=done, at=f"{duration(now_s)} simulated, {events:,} events")

        asked = SimulationLength(samples, None if hours is None else hours * 3600, "")
        with naming(scenario or plan):
            until = default_length(made, given, seed) if hours is None and samples is None else asked
            result = run_simulation(
                made, given, samples=until.samples, seconds=until.seconds, seed=seed, on_progress=on_progress
            )
    unreached = given.after(result.drain_s)
    short = too_short(result, made)
    document = {"plan": str(plan), **as_plain(result), "too_short": short, "unreached": unreached}
    if out is not None:
        _write(document, out)
        from ravnest.pictures import draw_simulation

        draw_simulation(result, made.predicted.samples_per_s, out / "simulated.png", steady=short is None)
    if as_json:
        json.dump(document, sys.stdout, indent=2, allow_nan=False)
        sys.stdout.write("\n")
        return
    from ravnest.cli.views.simulation import show_simulation

    show_simulation(result, made, Console(soft_wrap=True), until.reason, unreached)
    if out is not None:
        Console(soft_wrap=True).print(f"\nWrote [bold]{out / 'simulated.json'}[/bold] and its picture.")


def _write(document: object, out: Path) -> None:
    from ravnest.errors import InvalidInput

    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "simulated.json").write_text(json.dumps(document, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"cannot be written: {error.strerror}", path=str(out), key="--out") from None
