"""`ravnest init`: the first files of a job, from five questions or from options.

In: the answers. Out: job.yaml, nodes.yaml, model.py and data.py in a folder, which plan and train as they are, and the
commands to give next. Questions are asked on a terminal only; elsewhere what is not given has its default.
"""

from __future__ import annotations

import shlex
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer


def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the files are to be.")] = Path(),
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
    from cluster_planner import hardware_named
    from ravnest.cli.plan import first_try
    from ravnest.cli.views.progress import note
    from ravnest.errors import InvalidInput
    from ravnest.templates import KINDS, Answers, require_free, write_first_files

    require_free(folder)
    asks, untold = asks_here() and not yes, list[str]()
    answers = Answers(kind="text", machines=[_this_machine()], hardware=["laptop"], mbps=40.0, minutes=5.0)

    def answered(key: str, given: object, question: str, read: Callable[[str], Any] = str) -> Answers:
        """The answers with one more: the option's, the terminal's, which is asked again until it can be, or none."""

        def value(text: str) -> Answers:
            try:
                return replace(answers, **{key: read(text)})
            except InvalidInput as error:
                raise typer.BadParameter(error.message) from None

        if given is not None:
            return replace(answers, **{key: read(str(given))})
        if not asks:
            untold.append(f"--{key} {shlex.quote(_shown(getattr(answers, key)))}")
        return answers if not asks else typer.prompt(question, default=_shown(getattr(answers, key)), value_proc=value)

    answers = answered("kind", kind, f"What is to be learned ({', '.join(KINDS)})?")
    answers = answered("machines", machines, "What are your machines called (separated by commas)?", _names)
    what = "What do they have (laptop, desktop, or a GPU such as rtx 3060)?"
    answers = answered("hardware", hardware, what, _names)
    answers = answered("mbps", mbps, "How many Mbit/s does a machine send and receive?", _number)
    answers = answered("minutes", minutes, "How many minutes may the training take?", _number)
    made = write_first_files(folder, answers)
    if untold and not yes:
        note(f"questions are asked on a terminal only; assumed: {' '.join(untold)}")
    for path in made:
        typer.echo(f"Wrote {path}")
    command, why = first_try(hardware_named(name).device for name in answers.hardware)
    there = "" if folder == Path() else f"cd {shlex.quote(str(folder))} && "
    typer.echo(f"Next: {there}ravnest plan nodes.yaml && {command}{' plan.yaml' * (why is not None)}")
    if why is not None:
        note(why)


def asks_here() -> bool:
    """Whether somebody sits at a terminal who can answer."""
    return sys.stdin.isatty()


def _this_machine() -> str:
    return socket.gethostname().partition(".")[0] or "here"


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def _number(text: str) -> float:
    from ravnest.errors import InvalidInput

    try:
        return float(text)
    except ValueError:
        raise InvalidInput(f"expected a number, not {text!r}") from None


def _shown(answer: object) -> str:
    if isinstance(answer, list):
        return ", ".join(answer)
    return f"{answer:g}" if isinstance(answer, float) else str(answer)
