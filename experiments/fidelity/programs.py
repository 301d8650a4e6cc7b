"""Running a program that prints one JSON document, with a deadline after which all of its processes are ended."""

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.harness.report import ROOT

_END_S = 10.0
_TOLD = 600


def answer(command: Sequence[str], environment: Mapping[str, str], *, deadline_s: float, log: Path) -> Any:
    """The document. What the program says on stderr goes to `log`. Raises RuntimeError where it fails or is late."""
    with log.open("w", encoding="utf-8") as complaints, tempfile.TemporaryFile("w+") as output:
        running = subprocess.Popen(
            [*command],
            stdout=output,
            stderr=complaints,
            cwd=ROOT,
            env={**os.environ, **environment, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        try:
            code = running.wait(deadline_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            end(running)
        output.seek(0)
        text = output.read()
    if code is None:
        raise RuntimeError(f"not done after {deadline_s:.0f} s: {_last(log)}")
    if code:
        raise RuntimeError(f"ended with {code}: {_last(log)}")
    return json.loads(text)


def end(running: "subprocess.Popen[Any]") -> None:
    """End a program that leads a session of its own, with all that is in it."""
    for which in (signal.SIGTERM, signal.SIGKILL):
        if running.poll() is not None:
            return
        try:
            os.killpg(running.pid, which)
        except ProcessLookupError:
            return
        try:
            running.wait(_END_S)
        except subprocess.TimeoutExpired:
            continue


def _last(log: Path) -> str:
    return " ".join(log.read_text(encoding="utf-8", errors="replace").split())[-_TOLD:]
