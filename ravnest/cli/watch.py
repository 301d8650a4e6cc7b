"""`ravnest watch`, and `--page` of other commands: the page of a run, a plan or a collaboration, for a browser.

In: the run's folder or the plan, and where to listen. Out: a link with the token that the page wants, and a server
until Ctrl-C; beside a run it is a process of its own, which ends some seconds after the run has.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ravnest.cli.runs import RUN_HELP

if TYPE_CHECKING:
    from cluster_planner import Plan
    from ravnest.page.server import PageServer

PORT = 7070
LOOPBACK = "127.0.0.1"
_LAST_LOOK_S = 8.0
"""How long the page of a run that has ended is still served, so that browsers see the end."""

Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="Where to listen, or on the next that is free.")]
Host = Annotated[
    str,
    typer.Option(
        "--host",
        metavar="ADDRESS",
        help="The address to listen on. Others than this machine's own need one of its LAN.",
    ),
]


def watch(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help=f"{RUN_HELP}; or a plan.yaml, or a collaboration's folder."),
    ],
    port: Port = PORT,
    host: Host = LOOPBACK,
    with_run: Annotated[int | None, typer.Option("--with-run", hidden=True)] = None,
) -> None:
    """Show a run in a browser, whether it goes on or has ended; or a plan, to try other places for its nodes; or the
    people of a collaboration.

    Ctrl-C ends the page; the run does not notice.
    """
    if with_run is not None:
        _serve_beside(run, with_run)
        return
    if run.is_file():
        import ravnest

        show_plan_page(ravnest.load_plan(run), run, host, port)
        return
    from ravnest.page.access import token_of
    from ravnest.page.collaboration_view import FollowedCollaboration, is_collaboration
    from ravnest.results.run_state import find_run

    if is_collaboration(run):
        show_members_page(FollowedCollaboration(run).document, run, token_of(run), host, port)
        return
    path = find_run(run)
    listening = listening_at(host, port)
    token = token_of(path)
    typer.echo(f"{path}: {link_to(listening, host, token)}")
    _warn_of_others(host)
    typer.echo("Ctrl-C ends the page; the run does not notice", err=True)
    try:
        _server(path, token, listening).serve()
    except KeyboardInterrupt:
        return


def show_plan_page(plan: Plan, path: Path, host: str = LOOPBACK, port: int = PORT) -> None:
    """Serve the page of a plan until Ctrl-C."""
    from ravnest.page.access import Access, new_token
    from ravnest.page.plan_app import plan_app
    from ravnest.page.server import PageServer

    listening, token = listening_at(host, port), new_token()
    typer.echo(f"{path}: {link_to(listening, host, token)}")
    _warn_of_others(host)
    typer.echo("Ctrl-C ends the page", err=True)
    with suppress(KeyboardInterrupt):
        PageServer(plan_app(plan, Access(token, {socket.gethostname()})), listening).serve()


def show_members_page(
    look: Callable[[], dict[str, object]], name: Path, token: str, host: str = LOOPBACK, port: int = PORT
) -> None:
    """Serve the page of what `look` finds, people or hosts of experts, until Ctrl-C."""
    from ravnest.page.access import Access
    from ravnest.page.members_app import members_app
    from ravnest.page.server import PageServer

    listening = listening_at(host, port)
    typer.echo(f"{name}: {link_to(listening, host, token)}")
    _warn_of_others(host)
    typer.echo("Ctrl-C ends the page; nobody else notices", err=True)
    with suppress(KeyboardInterrupt):
        PageServer(members_app(look, Access(token, {socket.gethostname()})), listening).serve()


def _warn_of_others(host: str) -> None:
    if host not in (LOOPBACK, "::1", "localhost"):
        typer.echo("note: the page is not encrypted: whoever hears the network can read it, and its link", err=True)


def listening_at(host: str, port: int) -> socket.socket:
    """A socket that listens there. Raises InvalidInput, which names the option, where that is not possible."""
    from ravnest.errors import InvalidInput
    from ravnest.page.server import listen

    try:
        return listen(host, port)
    except (OSError, UnicodeError) as error:
        said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InvalidInput(f"cannot listen on {host} at port {port}: {said}", key="--host") from None


def link_to(listening: socket.socket, host: str, token: str) -> str:
    """The link that a browser opens the page with."""
    name = socket.gethostname() if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    return f"http://{name}:{listening.getsockname()[1]}/?token={token}"


def _server(run: Path, token: str, listening: socket.socket) -> PageServer:
    from ravnest.cli.views.progress import event_line
    from ravnest.page.access import Access
    from ravnest.page.followed_run import FollowedRun
    from ravnest.page.server import PageServer, page_app

    return PageServer(page_app(FollowedRun(run, event_line), Access(token, {socket.gethostname()})), listening)


@contextmanager
def page_beside(run: Path, port: int) -> Iterator[str]:
    """While the block goes on, and some seconds more, a process of its own serves the page of the run in that folder,
    which need not be there yet. Gives the link."""
    from ravnest.page.access import new_token, token_of

    listening = listening_at(LOOPBACK, port)
    token = token_of(run) if run.is_dir() else new_token()
    link = link_to(listening, LOOPBACK, token)
    command = [sys.executable, "-m", "ravnest", "watch", str(run), "--with-run", str(listening.fileno())]
    with listening:
        page = subprocess.Popen(
            ["nice", "-n", "10", *command],
            stdin=subprocess.PIPE,
            pass_fds=[listening.fileno()],
            start_new_session=True,  # Ctrl-C is for the run: the page shows how it ends
        )
    assert page.stdin is not None
    with page.stdin:  # its end tells the page that the run has ended, however it did
        page.stdin.write(f"{token}\n".encode())
        page.stdin.flush()
        yield link


def _serve_beside(run: Path, descriptor: int) -> None:
    """Serve the page of the run whose process holds the other end of standard input."""
    token = sys.stdin.readline().strip()
    listening = socket.socket(fileno=descriptor)
    server = _server(run, token, listening)

    def end() -> None:
        while sys.stdin.read(4096):
            pass
        time.sleep(_LAST_LOOK_S)
        server.stop()

    threading.Thread(target=end, name="end", daemon=True).start()
    server.serve()
