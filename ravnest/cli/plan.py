"""`ravnest plan`: makes plan.yaml and its picture from nodes.yaml and job.yaml.

In: the command's options. Out: plan.yaml, its picture, and tables of the plan, or with --json the plan as one document.
Everything else is `ravnest.explain_plan`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from cluster_planner import Plan


def plan(
    nodes: Annotated[Path, typer.Argument(metavar="NODES_YAML", help="The machines and their links.")],
    job: Annotated[
        Path | None,
        typer.Option("--job", metavar="PATH", help="The job; without it, job.yaml beside NODES_YAML."),
    ] = None,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="PATH", help="Where to write; the picture lies beside it."),
    ] = Path("plan.yaml"),
    seed: Annotated[int, typer.Option(help="Of the planner's own search; the job has a seed of its own.")] = 0,
    min_stages: Annotated[
        int,
        typer.Option(
            "--min-stages",
            metavar="N",
            help="Stages of each cluster, at the least; with 2, no machine trains the whole model by itself.",
        ),
    ] = 1,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print what each step of the search gained, and what would help most.")
    ] = False,
    check: Annotated[
        str,
        typer.Option(help="How much is tried with values: full, sampled (two of the model's equal blocks) or none."),
    ] = "full",
    budget: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Search on for so long after the first plan, which is written before; Ctrl-C ends it with the best.",
        ),
    ] = None,
    cache: Annotated[
        bool, typer.Option("--cache/--no-cache", help="Take the check of the same job's model that was made before.")
    ] = True,
    everything: Annotated[
        bool, typer.Option("--all", help="Print each stage of a large plan, of which a summary is printed otherwise.")
    ] = False,
    page: Annotated[
        bool,
        typer.Option("--page", help="Show the plan in a browser, to try other places for its nodes, until Ctrl-C."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as one JSON document.")] = False,
) -> None:
    """Decide who trains which part of the model: write plan.yaml and a picture of it."""
    import ravnest
    from ravnest.cli.views.progress import note, warning
    from ravnest.cli.views.steps import Steps
    from ravnest.cli.views.tables import console
    from ravnest.driver.signals import StopOnInterrupt
    from ravnest.errors import InvalidInput
    from ravnest.planning.searching_on import Budget

    job_path = job if job is not None else nodes.parent / "job.yaml"
    _refuse_output(output, [nodes, job_path])
    if as_json and page:
        raise InvalidInput("ends when the document is printed; --page serves the plan until Ctrl-C", key="--json")
    with Steps(console(stderr=True)) as steps, StopOnInterrupt() as interrupt:

        def first(made: Plan) -> None:
            _write(made, output)
            interrupt.gracefully = True  # from now on there is a plan to end with

        def last() -> None:
            interrupt.gracefully = False  # what follows, advice above all, is left out as without a budget

        so_far: list[tuple[Plan, str]] = []
        wanted = None if budget is None else Budget(budget, first, lambda: interrupt.wanted, last)
        try:
            explained = ravnest.explain_plan(
                nodes,
                job,
                seed=seed,
                min_stages=min_stages,
                check=check,
                cache=cache,
                constraints=explain,
                budget=wanted,
                progress=steps.begin,
                part=steps.done,
                warn=warning,
                so_far=lambda made, lacks: so_far.append((made, lacks)),
            )
        except KeyboardInterrupt:
            note(_kept_of(so_far, output))
            raise
        made = explained.plan
        steps.begin("drawing the plan")
        picture_path = _write(made, output)
    from ravnest.cli.views.plan import plan_document, show_plan
    from ravnest.cli.views.plan_explained import (
        explanation,
        of_budget,
        of_constraints,
        of_staleness,
        show_explanation,
    )

    if as_json:
        document = plan_document(made, output, picture_path)
        document["search_ended"] = None if (ended := of_budget(explained.search)) is None else ended.strip()
        if explain:
            document |= explanation(made, explained.search, explained.largest_round, explained.relaxed)
        json.dump(document, sys.stdout, indent=2, allow_nan=False)
        sys.stdout.write("\n")
        return
    show_plan(made, console(), everything=everything)
    if explain:
        show_explanation(made, explained.search, console(), explained.largest_round, explained.relaxed)
    else:
        for line in (of_staleness(explained.search), of_budget(explained.search), of_constraints(made)):
            if line is not None:
                console().print(line, markup=False, highlight=False)
    whole = console(soft_wrap=True)
    whole.print(f"\nWrote [bold]{output}[/bold] and its picture [bold]{picture_path}[/bold].")
    command, why = first_try(
        made.fleet.node(stage.node).device for cluster in made.clusters for stage in cluster.stages
    )
    whole.print(f"Next: {command} {output}", highlight=False)
    if why is not None:
        note(why)
    if page:
        from ravnest.cli.watch import show_plan_page

        show_plan_page(made, output)


def first_try(devices: Iterable[str]) -> tuple[str, str | None]:
    """The command that trains on this machine by a plan whose stages have these devices, and why it is not `run`."""
    needed = set(devices) - {"cpu"}
    if not needed:
        return "ravnest run", None
    from ravnest.stage.device import lacking_here

    lacking = lacking_here(needed)
    if not lacking:
        return "ravnest run", None
    why = (
        f"`ravnest run` needs {' and '.join(lacking)}, which this machine lacks, or --address of machines that have it"
    )
    return "ravnest rehearse", why


def _refuse_output(output: Path, inputs: Sequence[Path]) -> None:
    """Raises InvalidInput, before planning, where no plan can be written or one of the input files would be lost."""
    from ravnest.errors import InvalidInput
    from ravnest.files import require_writable

    if output.is_dir():
        raise InvalidInput("is a folder; expected a file such as plan.yaml", path=str(output), key="output")
    if output.suffix == ".png":
        raise InvalidInput("is the name of the plan's picture; expected one such as plan.yaml", key="output")
    for path in inputs:
        if output.resolve() == path.resolve():
            raise InvalidInput("would overwrite what is planned; give another path", path=str(output), key="output")
    require_writable(output, "output")


def _kept_of(so_far: Sequence[tuple[Plan, str]], output: Path) -> str:
    """Writes the best plan that planning had come to when it was interrupted, and says so, and what it lacks.

    One that was tried is better than one that was not, whatever they are worth.
    """
    if not so_far:
        return f"there was no plan yet, so that {output} was not written"
    from cluster_planner import format_rate
    from ravnest.planning.prepare_plan import UNADVISED

    best, lacks = max(so_far, key=lambda each: (each[1] == UNADVISED, each[0].predicted.objective))
    _write(best, output)
    worth, rate = format_rate(best.predicted.objective), format_rate(best.predicted.samples_per_s)
    return f"{output} has the best plan so far: {rate} samples/s, worth {worth}; {lacks}"


def _write(made: Plan, plan_path: Path) -> Path:
    """Saves the plan, and its picture beside it under the same stem; returns the path of the picture."""
    import ravnest
    from ravnest.errors import InvalidInput
    from ravnest.plan_pictures import draw_plan

    picture_path = plan_path.with_suffix(".png")
    try:
        plan_path.parent.mkdir(parents=True, exist_ok=True)
        ravnest.save_plan(made, plan_path)
        draw_plan(made, picture_path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InvalidInput(
            f"cannot be written ({reason})", path=str(plan_path), hint="give another path with -o"
        ) from None
    return picture_path
