"""`ravnest init`: the first files of a job, from five questions or from options.

In: the answers. Out: job.yaml, nodes.yaml, model.py and data.py in a folder, which plan and train as they are, and the
commands to give next. Questions are asked only of a terminal; elsewhere what is not given has its default.
"""

from __future__ import annotations

import shlex
import socket
import sys
from pathlib import Path
from typing import Annotated

import typer


def init(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Where the files are to be.")] = Path(),
    kind: Annotated[
        str | None, typer.Option(metavar="KIND", help="What is to be learned: text, images or numbers.")
    ] = None,
    machines: Annotated[
        str | None, typer.Option(metavar="NAMES", help="The machines, separated by commas; else this one.")
    ] = None,
    hardware: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="What they have, such as laptop, desktop or 'rtx 3060': one name, or each."),
    ] = None,
    mbps: Annotated[float | None, typer.Option(help="What a machine sends and receives, in Mbit/s.")] = None,
    minutes: Annotated[float | None, typer.Option(help="How long the training may take.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing; take defaults for what is not given.")] = False,
) -> None:
    """Write the first files of a job: job.yaml, nodes.yaml, a model and its data, which train as they are."""
    from ravnest.templates import KINDS, Answers, write_first_files

    asks = asks_here() and not yes

    def answer(given: str | None, question: str, default: str) -> str:
        if given is not None or not asks:
            return default if given is None else given
        return str(typer.prompt(question, default=default))

    def number(given: float | None, question: str, default: float) -> float:
        if given is not None or not asks:
            return default if given is None else given
        return float(typer.prompt(question, default=default, type=float))

    answers = Answers(
        kind=answer(kind, f"What is to be learned ({', '.join(KINDS)})?", "text"),
        machines=_names(answer(machines, "What are your machines called (separated by commas)?", _this_machine())),
        hardware=_names(answer(hardware, "What do they have (laptop, desktop, or a GPU such as rtx 3060)?", "laptop")),
        mbps=number(mbps, "How many Mbit/s does a machine send and receive?", 40.0),
        minutes=number(minutes, "How many minutes may the training take?", 5.0),
    )
    for path in write_first_files(folder, answers):
        typer.echo(f"Wrote {path}")
    if folder == Path():
        typer.echo("Next: ravnest plan nodes.yaml && ravnest run")
    else:
        typer.echo(f"Next: cd {shlex.quote(str(folder))} && ravnest plan nodes.yaml && ravnest run")


def asks_here() -> bool:
    """Whether somebody sits at a terminal who can answer."""
    return sys.stdin.isatty()


def _this_machine() -> str:
    return socket.gethostname().partition(".")[0] or "here"


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]
