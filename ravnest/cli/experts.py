"""`ravnest experts`: hosts experts that others call and train, and shows who hosts what.

In: experts.yaml and the commands' options. Out: lines about what becomes of experts; for `show` a table, or with --json
one document. Everything else is `ravnest.experts`.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ravnest.errors import InvalidInput
from ravnest.formatting import harmless

if TYPE_CHECKING:
    from ravnest.experts.announcements import Seen
    from ravnest.experts.config import ExpertsConfig

experts = typer.Typer(no_args_is_help=True, help="Experts of a layer, hosted by many, found in a hash table.")

File = Annotated[Path, typer.Argument(metavar="FILE", help="experts.yaml: what hosts and callers agree on.")]
Peers = Annotated[
    list[str] | None,
    typer.Option("--peer", metavar="HOST:PORT", help="A node of the table; may be given several times."),
]


@experts.command(epilog="Example: ravnest experts serve experts.yaml --peer 127.0.0.1:7700 --experts '0.*'")
def serve(
    file: File,
    peer: Peers = None,
    host: Annotated[str, typer.Option(help="This machine's address, as callers and hosts reach it.")] = "127.0.0.1",
    table_port: Annotated[
        int, typer.Option(min=0, max=65535, help="UDP port of this host's own node of the table; 0 for any.")
    ] = 0,
    name: Annotated[str, typer.Option(help="What people call this host.")] = "host",
    wanted: Annotated[
        list[str] | None,
        typer.Option("--experts", metavar="PATTERN", help="Experts to claim at once where nobody else does: 3.7, 3.*"),
    ] = None,
    most_experts: Annotated[
        int | None, typer.Option(min=1, help="Host no more. Default: what half of the free memory holds.")
    ] = None,
    folder: Annotated[Path | None, typer.Option(help="For checkpoints, and this host's private key.")] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="What all members share; made if there is none. Needed beyond this machine.")
    ] = None,
    outwards_only: Annotated[
        bool, typer.Option(help="Listen nowhere, as behind a router: reach callers and hosts that do.")
    ] = False,
    seconds: Annotated[float | None, typer.Option(min=0.0, help="End after so long; without it, when stopped.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads that compute. Default: torch's own.")] = None,
) -> None:
    """Host experts until Ctrl-C or SIGTERM; then write them, hand them over to other hosts, and withdraw.

    Without --peer a new table begins. An expert whose host died goes on from the last copy that it gave to another.
    """
    import torch

    from ravnest.experts import load_experts, opened_host

    if threads is not None:
        torch.set_num_threads(threads)
    config = load_experts(file)
    try:
        with opened_host(
            config,
            peer or [],
            host=host,
            table_port=table_port,
            label=name,
            token_file=token_file,
            experts=wanted or [],
            most_experts=most_experts,
            folder=folder,
            outwards_only=outwards_only,
            search_dirs=[file.resolve().parent],
            path=str(file),
            report=lambda line: typer.echo(harmless(line)),  # members say some of it
        ) as serving:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: serving.stop())
            serving.serve(seconds)
            work, figures = serving.work, serving.figures
    except InvalidInput as error:
        raise _with_option(error, "--table-port" if table_port else "--host") from error
    refused = ", ".join(f"{count} {why}" for why, count in sorted(work.refused.items())) or "none"
    most_stale = max(work.staleness, default=0)
    typer.echo(
        f"{work.requests} requests of {work.samples} samples in {work.batches} batches; {work.updates} updates, "
        f"at most {most_stale} stale; refused: {refused}; {figures.handed_over} experts handed over"
    )


@experts.command(epilog="Example: ravnest experts show experts.yaml --peer 127.0.0.1:7700")
def show(
    file: File,
    peer: Peers = None,
    page: Annotated[bool, typer.Option("--page", help="Show them in a browser on this machine, until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the hosts of a grid: how many experts each has, how busy it is, and how long its answers take."""
    from ravnest.dht import new_identity
    from ravnest.experts import load_experts
    from ravnest.experts.announcements import look
    from ravnest.experts.table_thread import TableThread

    config = load_experts(file)
    if not peer:
        raise InvalidInput("expected the address of a node of the table, as HOST:PORT", key="--peer")
    try:
        table = TableThread(None, peer, new_identity(), outwards_only=True)
    except InvalidInput as error:
        raise _with_option(error) from error

    def found() -> dict[str, Any]:
        return _document(config, table.run(lambda node: look(node, config.places)).result())

    try:
        if page:
            from ravnest.cli.watch import show_members_page
            from ravnest.page.access import new_token

            show_members_page(found, file, new_token())
            return
        document = found()
    finally:
        table.close()
    if as_json:
        typer.echo(json.dumps(document))
        return
    from ravnest.cli.views.members import show_hosts
    from ravnest.cli.views.tables import console

    out = console()
    out.print(f"{config.name}: {document['hosted']} of {document['experts']} experts are hosted", highlight=False)
    if document["hosts"]:
        show_hosts(document["hosts"], out)
    out.print(f"callers: {len(document['callers'])}", highlight=False)
    if not document["complete"]:
        out.print("the time was over before all was read: there may be more", highlight=False)


def _document(config: ExpertsConfig, seen: Seen) -> dict[str, Any]:
    """What the table says of the grid, as JSON has it."""
    from ravnest.experts.grid import expert_text

    hosts = [
        {
            "host": name,
            "address": f"{f'[{at.host}]' if ':' in at.host else at.host}:{at.pipeline_port}",
            "experts": sorted(expert_text(one) for one, claim in seen.claims.items() if claim.value.member == name),
            "most_experts": news.most_experts,
            "samples_per_s": news.samples_per_s,
            "answer_ms": 1e3 * news.answer_s,
            "updates": news.updates,
        }
        for name, news in sorted((name, one.value) for name, one in seen.hosts.items())
        for at in (news.at,)
    ]
    whole = {"name": config.name, "experts": len(config.places), "hosted": len(seen.claims), "hosts": hosts}
    return {**whole, "callers": sorted(seen.callers), "complete": seen.complete}


def _with_option(error: InvalidInput, listen: str = "--host") -> InvalidInput:
    """The error, with the option's name in the place of the argument of the Python door. `listen`: the option that says
    where to listen."""
    if error.path is None and error.key in {"experts", "host", "name", "peer", "listen", "token_file"}:
        key = listen if error.key == "listen" else "--" + error.key.replace("_", "-")
        return InvalidInput(error.message, key=key, hint=error.hint)
    return error
