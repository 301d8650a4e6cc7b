"""`ravnest plan`: from nodes.yaml and job.yaml to plan.yaml and its picture.

Decides the command's options, where its files go, and what it prints. How a plan is made is in
ravnest.planning.prepare_plan.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from cluster_planner.plan import Plan
    from cluster_planner.search.cluster_search import Step


MOST_SEED = 2**32 - 1
"""What k-means takes."""


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
    seed: Annotated[
        int, typer.Option(min=0, max=MOST_SEED, help="Of the planner's own search; the job has a seed of its own.")
    ] = 0,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print what each step of the search gained, and what would help most.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as one JSON document.")] = False,
) -> None:
    """Decide who trains which part of the model: write plan.yaml and a picture of it."""
    from rich.console import Console

    from cluster_planner.files.yaml_files import load_fleet

    job_path = job if job is not None else nodes.parent / "job.yaml"

    def doubt(said: str) -> None:
        typer.echo(f"ravnest: warning: {nodes}: {said}", err=True)

    fleet = load_fleet(nodes, doubt)  # before torch is imported: what is wrong with the file is told at once
    _refuse_output(output, [nodes, job_path])
    _require_job(job, job_path)
    from cluster_planner.planner import Relaxed, without_constraints
    from ravnest.cli.views.steps import Steps
    from ravnest.planning.prepare_plan import prepare_plan

    steps = Steps(Console(stderr=True, quiet=as_json))
    with steps:
        searched: list[Step] = []
        made, most_round = prepare_plan(fleet, nodes, job_path, seed=seed, step=steps.begin, searched=searched.append)
        relaxed = without_constraints(made, tell=steps.begin) if explain else Relaxed()
        steps.begin("drawing the plan")
        picture_path = _write(made, output)
    if as_json:
        from ravnest.cli.views.plan import plan_document

        document = plan_document(made, output, picture_path)
        if explain:
            from ravnest.cli.views.plan_explained import explanation

            document |= explanation(made, searched, most_round, relaxed)
        json.dump(document, sys.stdout, indent=2, allow_nan=False)
        sys.stdout.write("\n")
        return
    from ravnest.cli.views.plan import show_plan
    from ravnest.cli.views.plan_explained import of_constraints, show_explanation

    show_plan(made, Console())
    if explain:
        show_explanation(made, searched, Console(), most_round, relaxed)
    elif (line := of_constraints(made)) is not None:
        Console().print(line, markup=False, highlight=False)
    console = Console(soft_wrap=True)
    console.print(f"\nWrote [bold]{output}[/bold] and its picture [bold]{picture_path}[/bold].")
    console.print(f"Next: ravnest run {output}", highlight=False)


def _refuse_output(output: Path, inputs: Sequence[Path]) -> None:
    """Before the work of planning: a place where no plan can be written, or that would cost the user a file."""
    from ravnest.errors import InvalidInput

    if output.is_dir():
        raise InvalidInput("is a folder; expected a file such as plan.yaml", path=str(output), key="--output")
    if output.suffix == ".png":
        raise InvalidInput("is the name of the plan's picture; expected one such as plan.yaml", key="--output")
    for path in inputs:
        if output.resolve() == path.resolve():
            raise InvalidInput("would overwrite what is planned; give another path", path=str(output), key="--output")


def _require_job(given: Path | None, path: Path) -> None:
    """Who has given no job is told where it was looked for, and how to give one."""
    from ravnest.errors import InvalidInput

    if given is None and not path.exists():
        raise InvalidInput("no such file: write the job there, or name it with --job", path=str(path))


def _write(made: Plan, plan_path: Path) -> Path:
    """Save the plan, and its picture beside it under the same stem. The path of the picture."""
    from cluster_planner.files.yaml_files import save_plan
    from ravnest.errors import InvalidInput
    from ravnest.pictures import draw_plan

    picture_path = plan_path.with_suffix(".png")
    try:
        plan_path.parent.mkdir(parents=True, exist_ok=True)
        save_plan(made, plan_path)
        draw_plan(made, picture_path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InvalidInput(f"cannot be written ({reason}); give another path with -o", path=str(plan_path)) from None
    return picture_path
