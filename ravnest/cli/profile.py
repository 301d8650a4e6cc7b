"""`ravnest profile`: measures this machine, or every node of a Ray cluster, and writes nodes.yaml.

In: the command's options. Out: nodes.yaml, and what was measured as tables or with --json as one document. The command
replaces a file only if it is told to. Everything else is `ravnest.profile`.
"""

from __future__ import annotations

import json
import shlex
import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from cluster_planner import Fleet

INCOMPLETE = 1


def profile(
    job: Annotated[
        Path | None,
        typer.Option("--job", metavar="PATH", help="Measure speed with this job's units; else a small transformer's."),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="RAY_ADDRESS", envvar="RAY_ADDRESS", help="A running Ray cluster; without one, this machine alone."
        ),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="PATH", help="Where to write.")] = Path(
        "nodes.yaml"
    ),
    merge: Annotated[
        bool, typer.Option("--merge", help="Write measured figures into the file that is there; keep all else of it.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the file that is there.")] = False,
    peers: Annotated[
        int, typer.Option(help="With how many others each node exchanges, where there are more than 12 nodes.")
    ] = 6,
    seconds: Annotated[float, typer.Option(help="Of each transfer.")] = 4.0,
    seed: Annotated[int, typer.Option(help="Of the choice of peers.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was measured as one JSON document.")] = False,
) -> None:
    """Measure machines and what joins them: speed, free memory, latencies and rates. Writes nodes.yaml."""
    import ravnest
    from ravnest.cli.views.progress import note
    from ravnest.cli.views.steps import Steps
    from ravnest.cli.views.tables import console

    known = _known(output, merge=merge, force=force)
    with (
        redirect_stdout(sys.stderr) if as_json else nullcontext(),
        Steps(console(stderr=True, quiet=as_json)) as steps,
    ):
        found = ravnest.profile(
            job,
            address=address,
            known=known,
            peers=peers,
            seconds=seconds,
            seed=seed,
            progress=steps.begin,
            part=steps.done,
            warn=note,
        )
    from cluster_planner import save_fleet
    from ravnest.cli.views.machines import comments, profile_document, show_profile

    fleet = found.fleet if known is None else found.merged_into(known)
    save_fleet(fleet, output, comments(found))
    if as_json:
        json.dump(profile_document(found, output), sys.stdout, indent=2, allow_nan=False)
        sys.stdout.write("\n")
    else:
        show_profile(found, console())
        whole = console(soft_wrap=True, highlight=False)
        whole.print(f"\nWrote [bold]{output}[/bold].")
        whole.print(next_step(output, job), markup=False)
    if found.missing:
        raise typer.Exit(INCOMPLETE)


def next_step(nodes: Path, job: Path | None) -> str:
    """Returns the line that names the command which plans with `nodes` and the `job` whose units were measured."""
    beside = nodes.parent / "job.yaml"
    command = ["ravnest", "plan", str(nodes)]
    if job is not None and not (beside.exists() and beside.samefile(job)):
        command += ["--job", str(job)]
    if job is None and not beside.exists():
        return f"Next: write what to train into {beside}, or name a job with --job, then {shlex.join(command)}"
    return f"Next: {shlex.join(command)}"


def _known(output: Path, *, merge: bool, force: bool) -> Fleet | None:
    """The fleet to merge into; None where there is none.

    Raises InvalidInput, before anything is measured, where no file can be written or one of the user's would be lost.
    """
    from cluster_planner import load_fleet
    from ravnest.errors import InvalidInput
    from ravnest.files import require_writable

    if merge and force:
        raise InvalidInput("give one of --merge and --force")
    if not output.parent.is_dir():
        raise InvalidInput(f"there is no folder {output.parent}", path=str(output), key="output")
    if output.is_dir():
        raise InvalidInput("is a folder; expected a file such as nodes.yaml", path=str(output), key="output")
    require_writable(output, "output")
    if not output.exists():
        return None
    if merge:
        return load_fleet(output)
    if force:
        return None
    raise InvalidInput(
        "is there already: --merge writes what is measured into it, --force replaces it, -o names another file",
        path=str(output),
        key="output",
    )
