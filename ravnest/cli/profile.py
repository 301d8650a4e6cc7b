"""`ravnest profile`: measure this machine, or every node of a Ray cluster, and write nodes.yaml.

In: the command's options. Out: nodes.yaml, and what was measured as tables or with --json as one document. A file of
the user's is never replaced unasked.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from cluster_planner import Fleet
    from ravnest.job.config import Job
    from ravnest.profiling.agents import Agents

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
        int, typer.Option(min=2, help="With how many others each node exchanges, where there are more than 12 nodes.")
    ] = 6,
    seconds: Annotated[float, typer.Option(min=0.5, max=60.0, help="Of each transfer.")] = 4.0,
    seed: Annotated[int, typer.Option(help="Of the choice of peers.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was measured as one JSON document.")] = False,
) -> None:
    """Measure machines and what joins them: speed, free memory, latencies and rates. Writes nodes.yaml."""
    from rich.console import Console

    from ravnest.errors import InvalidInput
    from ravnest.job.config import load_job

    known = _known(output, merge=merge, force=force)
    wanted = None if job is None else load_job(job)
    from ravnest.cli.views.machines import comments, profile_document, show_profile
    from ravnest.cli.views.progress import Steps
    from ravnest.profiling.measured_fleet import merged
    from ravnest.profiling.profile import ProfileRequest
    from ravnest.profiling.profile import profile as measure

    names = {} if known is None else {node.address: node.name for node in known.nodes if node.address}
    asked = ProfileRequest(wanted, job, peers, seconds, seed)
    with (
        redirect_stdout(sys.stderr) if as_json else nullcontext(),
        Steps(Console(stderr=True, quiet=as_json)) as steps,
        _crew_at(address, wanted, job, names) as crew,
    ):
        found = measure(crew, asked, steps.begin)
    from cluster_planner import save_fleet

    fleet = found.fleet if known is None else merged(found.measured, known)
    if not output.parent.is_dir():
        raise InvalidInput("there is no such folder", path=str(output.parent), key="output")
    save_fleet(fleet, output, comments(found))
    if as_json:
        json.dump(profile_document(found, output), sys.stdout, indent=2, allow_nan=False)
        sys.stdout.write("\n")
    else:
        show_profile(found, Console())
        Console(soft_wrap=True).print(f"\nWrote [bold]{output}[/bold]. Next: ravnest plan {output}", highlight=False)
    if found.missing:
        raise typer.Exit(INCOMPLETE)


def _known(output: Path, *, merge: bool, force: bool) -> Fleet | None:
    """The fleet to merge into. Refuses, before anything is measured, what would cost the user a file."""
    from cluster_planner import load_fleet
    from ravnest.errors import InvalidInput

    if merge and force:
        raise InvalidInput("give one of --merge and --force")
    if output.is_dir():
        raise InvalidInput("is a folder; expected a file such as nodes.yaml", path=str(output), key="output")
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


@contextmanager
def _crew_at(address: str | None, job: Job | None, job_file: Path | None, names: Mapping[str, str]) -> Iterator[Agents]:
    """Who measures: an agent on each node of the Ray cluster at `address`, or this process alone where that is None.

    `job`: whose code the nodes get. `names`: what the nodes are called, by address. Raises InvalidInput where nothing
    listens at `address`, and RunFailed where Ray cannot be joined.
    """
    if address is None:
        from ravnest.profiling.agents import LocalAgents

        name = next(iter(names.values())) if len(names) == 1 else socket.gethostname()
        yield LocalAgents(name, len(os.sched_getaffinity(0)))
        return
    from ravnest.driver.ray.code_shipping import job_code
    from ravnest.profiling.node_agents import RayAgents
    from ravnest.driver.ray.session import RaySession, check_address

    check_address(address)
    code = None if job is None or job_file is None else job_code(job, job_file)
    if code is not None and code.notice is not None:
        typer.echo(code.notice, err=True)
    session = RaySession(address, code)
    try:
        with RayAgents(session, names) as crew:
            yield crew
    finally:
        session.close()
