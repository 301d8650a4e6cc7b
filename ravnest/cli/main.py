"""The `ravnest` command: its subcommands, and how errors are reported to the user.

In: the command line. Out: what a subcommand prints, or an error as clear lines and an exit code: 2 for input that the
user can correct, 1 for a run that failed, 130 when interrupted. An error about an argument of the Python door names the
option instead. RAVNEST_TRACEBACK=1 shows the traceback. Heavy modules are imported by the commands that need them, so
that --help is fast.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from ravnest.cli.attach import attach
from ravnest.cli.collaborate import collaborate
from ravnest.cli.compare import compare
from ravnest.cli.dht import dht
from ravnest.cli.doctor import doctor
from ravnest.cli.evaluate import evaluate
from ravnest.cli.experts import experts
from ravnest.cli.explain import explain
from ravnest.cli.export import export
from ravnest.cli.init import init
from ravnest.cli.logs import logs
from ravnest.cli.nodes import join, leave
from ravnest.cli.plan import plan
from ravnest.cli.profile import profile
from ravnest.cli.rehearse import rehearse
from ravnest.cli.run import run
from ravnest.cli.runs import runs, status
from ravnest.cli.simulate import simulate
from ravnest.cli.steer import checkpoint, stop
from ravnest.cli.watch import watch
from ravnest.errors import Interrupted, InvalidInput, RavnestError
from ravnest.formatting import harmless

_OF_THE_MACHINE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
"""What the operating system refuses without naming a file, and what is no mistake of ravnest's."""

_EXPECTED = {
    "greater_than_equal": "expected {ge:.10g} or more",
    "less_than_equal": "expected {le:.10g} or less",
    "float_parsing": "expected a number",
    "int_parsing": "expected a whole number",
    "int_from_float": "expected a whole number",
}


def as_invalid_input(error: typer.BadParameter) -> InvalidInput:
    """The error for a value that typer refuses, in ravnest's words and with the name of the option."""
    from pydantic import ValidationError

    message, cause = error.message, error.__cause__ or error.__context__
    if isinstance(cause, ValidationError):
        (detail, *_) = cause.errors(include_url=False)
        expected = _EXPECTED.get(detail["type"])
        if expected is not None:
            message = f"{expected.format(**detail.get('ctx', {}))}, not {detail['input']}"
    names = [] if error.param is None else [*error.param.opts, *([error.param.name] if error.param.name else [])]
    return InvalidInput(message.removeprefix("Value error, "), key=next((n for n in names if n.startswith("--")), None))


class Command(TyperCommand):
    """A command whose errors about an argument of the Python door name the option instead."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except InvalidInput as error:
            for param in self.params:
                option = next((one for one in param.opts if one.startswith("--")), None)
                # An error about a file is about an option only where the option names that file.
                if option and error.key == param.name and error.path in (None, str(ctx.params[param.name])):
                    raise InvalidInput(error.message, path=error.path, key=option, hint=error.hint) from error
            raise


def _say_flags_take_nothing(params: list[Any]) -> list[Any]:
    """The same parameters, of which a help shows no `<bool>` behind a flag, as if it were to be followed by one."""
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
    return params


class _Commands(TyperGroup):
    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command, whose help is broken between words where the terminal ends, and not where the source does."""
        found = super().get_command(ctx, cmd_name)
        for each in () if found is None else (found, *getattr(found, "commands", {}).values()):
            _say_flags_take_nothing(each.get_params(ctx))
            if each.help:
                each.help = "\n\n".join(" ".join(part.split()) for part in each.help.split("\n\n"))
        return found

    def get_params(self, ctx: Any) -> list[Any]:
        return _say_flags_take_nothing(super().get_params(ctx))

    def invoke(self, ctx: Any) -> Any:
        """Runs a subcommand and reports Ctrl-C, for which typer itself prints nothing.

        An impossible value is reported in ravnest's words. A missing or unknown option is reported by typer, with the
        usage.
        """
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            if error.param is None or not error.message:
                raise
            raise as_invalid_input(error) from None
        except (KeyboardInterrupt, typer.Abort) as error:
            if isinstance(error, typer.Abort):  # of a question, whose line it has left open
                typer.echo(err=True)
            typer.echo("ravnest: interrupted", err=True)
            raise typer.Exit(Interrupted.exit_code) from None


app = typer.Typer(
    name="ravnest",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train PyTorch models on the unequal machines you have, joined by home internet.",
    epilog="Example: ravnest plan examples/home/nodes.yaml && ravnest run",
)
app.command(cls=Command, epilog="Example: ravnest init first --kind text --machines desk,attic")(init)
app.command(cls=Command, epilog="Example: ravnest plan examples/home/nodes.yaml -o plan.yaml")(plan)
app.command(cls=Command, epilog="Example: ravnest simulate plan.yaml --hours 24 --jitter 0.1")(simulate)
app.command(cls=Command, epilog="Example: ravnest run plan.yaml --out runs/first")(run)
app.command(cls=Command, epilog="Example: ravnest profile --job job.yaml --address 192.0.2.1:6379")(profile)
app.command(cls=Command, epilog="Example: ravnest doctor plan.yaml --address 192.0.2.1:6379")(doctor)
app.command(cls=Command, epilog="Example: ravnest rehearse plan.yaml --speed 10")(rehearse)
app.command(cls=Command, epilog="Example: ravnest explain optimizer.schedule")(explain)
app.command(cls=Command, epilog="Example: ravnest runs")(runs)
app.command(cls=Command, epilog="Example: ravnest status runs/first")(status)
app.command(cls=Command, epilog="Example: ravnest logs runs/first --follow")(logs)
app.command(cls=Command, epilog="Example: ravnest attach runs/first")(attach)
app.command(cls=Command, epilog="Example: ravnest watch runs/first --port 8000")(watch)
app.command(cls=Command, epilog="Example: ravnest stop runs/first --wait 300")(stop)
app.command(cls=Command, epilog="Example: ravnest checkpoint runs/first --wait 300")(checkpoint)
app.command(cls=Command, epilog="Example: ravnest compare runs/first runs/second --picture both.png")(compare)
app.command(cls=Command, epilog="Example: ravnest evaluate runs/first")(evaluate)
app.command(cls=Command, epilog="Example: ravnest leave runs/first laptop")(leave)
app.command(cls=Command, epilog="Example: ravnest join runs/first laptop")(join)
app.command(cls=Command, epilog="Example: ravnest export runs/first --tensorboard runs/first/tensorboard")(export)
app.add_typer(dht, name="dht")
app.add_typer(experts, name="experts")
app.add_typer(collaborate, name="collaborate")


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"ravnest {version('ravnest')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Exists so that the app has options of its own; --version is handled by its callback."""


def main() -> None:
    """The console script. Ends the process; prints no traceback unless RAVNEST_TRACEBACK=1."""
    try:
        app()
    except Exception as error:
        if os.environ.get("RAVNEST_TRACEBACK") == "1":
            raise
        lines, code = describe(error)
        for line in lines:
            wrong = "" if isinstance(error, Interrupted) else "error: "
            typer.echo(f"ravnest: {wrong}{line}", err=True)
        if isinstance(error, RavnestError) and error.hint:
            typer.echo(f"ravnest: hint: {error.hint}", err=True)
        sys.exit(code)


def describe(error: Exception) -> tuple[list[str], int]:
    """The lines that the user reads, and the exit code.

    An error that is raised on purpose brings both. What the operating system refuses about a file is the user's to
    mend. Any other error is a mistake in ravnest, and the line says so. What others have sent may stand in it.
    """
    if isinstance(error, OSError) and (error.filename is not None or error.errno in _OF_THE_MACHINE):
        named = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        return [harmless(f"{named}{error.strerror or error}")], InvalidInput.exit_code
    if not isinstance(error, RavnestError):
        said = " ".join(f"{type(error).__name__}: {error}".split())
        return [f"{harmless(said)} (this is a mistake in ravnest; RAVNEST_TRACEBACK=1 shows where)"], 1
    return [harmless(line) for line in str(error).splitlines()], error.exit_code
