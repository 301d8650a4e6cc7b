"""`ravnest run --detach`: a run that outlives its terminal.

In: the arguments of `ravnest run`. Out: a process of its own, in a session of its own, whose output is in
logs/output.log of the run's folder. Its start-up is shown here until it trains, or has ended.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from ravnest.checkpoints.run_folder import RunFolder

_LOOK_S = 0.1


def run_detached(arguments: Sequence[str], out: Path | None, *, resume: bool) -> None:
    """Start `ravnest run` with these arguments, show its start-up, and leave it when it trains.

    Ctrl-C until then stops it. Raises InvalidInput where the folder cannot be used, and Exit with the code of a run
    that has ended meanwhile. Of one that was refused no new folder is left: why it was has been shown.
    """
    from ravnest.checkpoints.run_folder import choose_folder
    from ravnest.driver.observe.report import PhaseEvent
    from ravnest.errors import InvalidInput
    from ravnest.results.run_log import events_in, lines_since

    folder = choose_folder(out, resume=resume)
    output, metrics = folder.output, folder.metrics
    missing = list(itertools.takewhile(lambda one: not one.exists(), (output.parent, *output.parent.parents)))
    file_before, at = _file(metrics), metrics.stat().st_size if metrics.exists() else 0
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with open(output, "ab", opener=_for_its_owner) as file:
            shown = file.tell()
            command = [sys.executable, "-m", "ravnest", "run", *arguments, "--out", str(folder.path)]
            environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
            run = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
    except OSError as error:
        raise InvalidInput(f"cannot be written ({error.strerror or error})", path=str(output)) from None
    trains = False
    try:
        while not trains:
            ended = run.poll() is not None  # asked first: what it wrote before is read below
            lines, shown = lines_since(output, shown)
            sys.stdout.writelines(f"{line}\n" for line in lines)
            sys.stdout.flush()
            if ended:
                if run.returncode == InvalidInput.exit_code and folder.path in missing:
                    _remove(folder, missing)
                raise typer.Exit(_exit_code(run.returncode))
            if _file(metrics) != file_before:  # what a failed run has left is written anew
                file_before, at = _file(metrics), 0
            lines, at = lines_since(metrics, at)
            trains = PhaseEvent("training") in events_in(lines)
            time.sleep(_LOOK_S)
    except KeyboardInterrupt:
        run.send_signal(signal.SIGINT)
        raise
    typer.echo(f"{folder.path} trains on as process {run.pid}, also without this terminal")
    typer.echo(f"  watch it: ravnest attach {folder.path}, or ravnest logs {folder.path} --follow")
    typer.echo(f"  stop it:  ravnest stop {folder.path}")


def _for_its_owner(path: str, flags: int) -> int:
    """Open a file that its owner alone can read where it is new: with --page the link in it has the page's token."""
    return os.open(path, flags, 0o600)


def _remove(folder: RunFolder, made: Sequence[Path]) -> None:
    """Remove the folders that were made for a run that did not begin, unless it has left more than its output."""
    from ravnest.checkpoints.run_folder import PAGE_TOKEN

    token = folder.path / PAGE_TOKEN
    if not set(folder.path.rglob("*")) <= {folder.output.parent, folder.output, token}:
        return  # it has begun, or another run has
    folder.output.unlink(missing_ok=True)
    token.unlink(missing_ok=True)
    for path in made:
        with contextlib.suppress(OSError):  # there is something else
            path.rmdir()


def _file(path: Path) -> int | None:
    """What tells a file from another one that takes its place."""
    return path.stat().st_ino if path.exists() else None


def _exit_code(ended: int) -> int:
    """The exit code as a shell tells it: a process that a signal has ended has 128 and its number."""
    return 128 - ended if ended < 0 else ended
