"""`ravnest run`: trains as a plan says, and shows the progress and the result.

In: the command's options. Out: a live view on a terminal, or plain lines elsewhere; at the end a summary, or with
--json the result as one document. Everything else is `ravnest.run`.
"""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack, nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ravnest.cli.watch import PORT, page_beside

if TYPE_CHECKING:
    from ravnest.driver.observe.report import Observer, RunEvent


def run(
    plan: Annotated[Path, typer.Argument(metavar="PLAN_YAML", help="What `ravnest plan` wrote.")] = Path("plan.yaml"),
    address: Annotated[
        str | None,
        typer.Option(
            metavar="RAY_ADDRESS",
            envvar="RAY_ADDRESS",
            help="A running Ray cluster; without one, Ray starts on this machine.",
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Go on from the last checkpoint of --out; without it, of the newest run in runs/."
        ),
    ] = False,
    other_data: Annotated[
        bool, typer.Option("--other-data", help="Resume although the data are not those of the checkpoint.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where to write; without it, a new folder in runs/."),
    ] = None,
    encrypt: Annotated[
        bool | None,
        typer.Option(
            "--encrypt/--no-encrypt",
            help="Encrypt tensors between machines, with keys of this run; the rule with --address.",
        ),
    ] = None,
    timeline: Annotated[
        bool,
        typer.Option("--timeline", help="Record what each stage does and when: trace.json, for ui.perfetto.dev."),
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Leave the run to itself when it trains: it outlives this terminal.")
    ] = False,
    page: Annotated[
        bool, typer.Option("--page", help="Serve a page of the run for a browser on this machine, and print its link.")
    ] = False,
    page_port: Annotated[
        int, typer.Option("--page-port", min=0, max=65535, help="Where the page listens, or on the next that is free.")
    ] = PORT,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON document.")] = False,
) -> None:
    """Train as the plan says. Ctrl-C writes a checkpoint and stops; --resume goes on from it."""
    if page and str(plan).isdigit() and not plan.exists():
        from ravnest.errors import InvalidInput

        raise InvalidInput("no such file", path=str(plan), hint=f"the page's port is given as --page-port {plan}")
    if detach or page:
        _refuse_early(plan, address)
    if detach:
        from ravnest.cli.detach import run_detached
        from ravnest.errors import InvalidInput

        if as_json:
            raise InvalidInput("tells how a run has ended, and --detach does not wait for that", key="--json")
        switches = {"--resume": resume, "--other-data": other_data, "--timeline": timeline, "--page": page}
        given = [str(plan), *(name for name, on in switches.items() if on), "--page-port", str(page_port)]
        given += [] if encrypt is None else ["--encrypt" if encrypt else "--no-encrypt"]
        given += [] if address is None else ["--address", address]
        run_detached(given, out, resume=resume)
        return
    import ravnest
    from ravnest.cli.views.lost_output import lasting_console
    from ravnest.cli.views.progress import LiveView, PlainView, note

    console = lasting_console(stderr=as_json, soft_wrap=True)
    view = LiveView(console) if console.is_terminal else PlainView(console)
    observer: Observer = view
    # Ray and the job's own code may print: with --json, stdout holds the result alone.
    with ExitStack() as leaving:
        if page:
            from ravnest.checkpoints.run_folder import choose_folder

            out = choose_folder(out, resume=resume).path
            observer = _WithLink(view, leaving.enter_context(page_beside(out, page_port)))
        leaving.enter_context(view)
        leaving.enter_context(redirect_stdout(sys.stderr) if as_json else nullcontext())
        result = ravnest.run(
            plan,
            address=address,
            resume=resume,
            other_data=other_data,
            encrypt=encrypt,
            timeline=timeline,
            out=out,
            observer=observer,
            warn=note,
        )
    if as_json:
        from ravnest.driver.observe.report import as_plain

        json.dump(as_plain(result), sys.stdout, indent=2, allow_nan=False)
        sys.stdout.write("\n")
    else:
        from ravnest.cli.views.result import show_result

        show_result(result, plan, console)
    if result.stopped_early:
        raise typer.Exit(ravnest.Interrupted.exit_code)


class _WithLink:
    """Tells the link of the run's page when the first step begins behind all that may refuse the run."""

    def __init__(self, observer: Observer, link: str) -> None:
        self._observer, self._link = observer, link

    def on(self, event: RunEvent) -> None:
        from ravnest.cli.views.progress import note
        from ravnest.driver.observe.report import PhaseEvent

        if self._link and isinstance(event, PhaseEvent) and event.name != "preparing":
            note(f"page: {self._link}")
            self._link = ""
        self._observer.on(event)


def _refuse_early(plan: Path, address: str | None) -> None:
    """Raise what the run would raise at once, before a folder is made and a page is served."""
    from ravnest.files import load_plan

    made = load_plan(plan)
    if address is None and any(node.device != "cpu" for node in made.fleet.nodes):
        from ravnest.driver.training_run import require_devices

        require_devices(made, None, plan)
